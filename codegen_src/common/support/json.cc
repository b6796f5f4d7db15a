// SPDX-License-Identifier: Apache-2.0
#include "common/support/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>
#include <unordered_set>

namespace tvm_byoc_dnnl::json {
namespace {

constexpr size_t kMostBytes = size_t{1} << 30;
constexpr int kMostDepth = 100;

void AppendUtf8(uint32_t code, std::string* out) {
  const int extra = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr uint32_t kLeads[] = {0, 0xC0, 0xE0, 0xF0};
  out->push_back(static_cast<char>(kLeads[extra] | code >> 6 * extra));
  for (int i = extra; i-- > 0;) out->push_back(static_cast<char>(0x80 | (code >> 6 * i & 0x3F)));
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Value ParseDocument() {
    if (text_.size() > kMostBytes)
      Fail(ErrorKind::kGraph, "JSON: ", text_.size(), " bytes, at most ", kMostBytes, " are read");
    Value value = ParseValue(0);
    SkipSpace();
    if (pos_ != text_.size()) Fault("unexpected text after the document");
    return value;
  }

 private:
  [[noreturn]] void Fault(const char* what) const {
    Fail(ErrorKind::kGraph, "JSON: ", what, " at byte ", pos_, " of ", text_.size());
  }

  char Peek() const { return pos_ < text_.size() ? text_[pos_] : '\0'; }

  void SkipSpace() {
    while (pos_ < text_.size() && (text_[pos_] == ' ' || text_[pos_] == '\n' ||
                                   text_[pos_] == '\t' || text_[pos_] == '\r')) {
      ++pos_;
    }
  }

  bool Consume(char c) {
    SkipSpace();
    if (Peek() != c || pos_ >= text_.size()) return false;
    ++pos_;
    return true;
  }

  void Expect(char c, const char* what) {
    if (!Consume(c)) Fault(what);
  }

  Value ParseValue(int depth) {
    if (depth > kMostDepth) Fault("nested too deeply");
    SkipSpace();
    switch (Peek()) {
      case '{':
        return ParseObject(depth);
      case '[':
        return ParseArray(depth);
      case '"':
        return ParseString();
      case 't':
        return ParseWord("true", Value(true));
      case 'f':
        return ParseWord("false", Value(false));
      case 'n':
        return ParseWord("null", Value());
      default:
        return ParseNumber();
    }
  }

  Value ParseWord(std::string_view word, Value value) {
    if (text_.substr(pos_, word.size()) != word) Fault("unknown word");
    pos_ += word.size();
    return value;
  }

  Value ParseObject(int depth) {
    ++pos_;
    Object object;
    std::unordered_set<std::string> keys;
    if (Consume('}')) return object;
    do {
      SkipSpace();
      if (Peek() != '"') Fault("expected a member name");
      std::string key = ParseString();
      if (!keys.insert(key).second) Fault("the same member twice");
      Expect(':', "expected ':'");
      Value value = ParseValue(depth + 1);
      object.emplace_back(std::move(key), std::move(value));
    } while (Consume(','));
    Expect('}', "expected ',' or '}'");
    return object;
  }

  Value ParseArray(int depth) {
    ++pos_;
    Array array;
    if (Consume(']')) return array;
    do {
      array.push_back(ParseValue(depth + 1));
    } while (Consume(','));
    Expect(']', "expected ',' or ']'");
    return array;
  }

  std::string ParseString() {
    ++pos_;
    std::string out;
    while (true) {
      if (pos_ >= text_.size()) Fault("unterminated string");
      unsigned char c = static_cast<unsigned char>(text_[pos_]);
      if (c == '"') {
        ++pos_;
        return out;
      }
      if (c < 0x20) Fault("control character in a string");
      if (c == '\\') {
        ParseEscape(&out);
      } else if (c < 0x80) {
        out.push_back(static_cast<char>(c));
        ++pos_;
      } else {
        CopyUtf8(&out);
      }
    }
  }

  void ParseEscape(std::string* out) {
    ++pos_;
    const char c = Peek();
    ++pos_;
    constexpr std::string_view kNames = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
    if (const size_t known = kNames.find(c); known != std::string_view::npos) {
      out->push_back(kMeant[known]);
      return;
    }
    if (c != 'u') Fault("unknown escape");
    uint32_t code = ParseHex4();
    if (code >= 0xDC00 && code < 0xE000) Fault("lone surrogate");
    if (code >= 0xD800 && code < 0xDC00) {
      if (text_.substr(pos_, 2) != "\\u") Fault("lone surrogate");
      pos_ += 2;
      uint32_t low = ParseHex4();
      if (low < 0xDC00 || low >= 0xE000) Fault("lone surrogate");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    AppendUtf8(code, out);
  }

  uint32_t ParseHex4() {
    std::string_view digits = text_.substr(pos_, 4);
    uint32_t code = 0;
    auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (digits.size() != 4 || error != std::errc() || end != digits.data() + 4) {
      Fault("expected four hexadecimal digits");
    }
    pos_ += 4;
    return code;
  }

  void CopyUtf8(std::string* out) {
    unsigned char lead = static_cast<unsigned char>(text_[pos_]);
    int extra = lead >= 0xF0 && lead < 0xF5 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC2 ? 1 : 0;
    if (extra == 0 || lead >= 0xF5) Fault("invalid UTF-8");
    uint32_t code = lead & (0x3Fu >> extra);
    if (pos_ + extra >= text_.size()) Fault("invalid UTF-8");
    for (int i = 1; i <= extra; ++i) {
      unsigned char c = static_cast<unsigned char>(text_[pos_ + i]);
      if ((c & 0xC0) != 0x80) Fault("invalid UTF-8");
      code = (code << 6) | (c & 0x3Fu);
    }
    constexpr uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
    if (code < kLeast[extra] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      Fault("invalid UTF-8");
    }
    out->append(text_.substr(pos_, extra + 1));
    pos_ += extra + 1;
  }

  size_t SkipDigits() {
    size_t start = pos_;
    while (Peek() >= '0' && Peek() <= '9') ++pos_;
    return pos_ - start;
  }

  Value ParseNumber() {
    size_t start = pos_;
    if (Peek() == '-') ++pos_;
    bool leading_zero = Peek() == '0';
    size_t digits = SkipDigits();
    if (digits == 0) Fault("expected a value");
    if (leading_zero && digits > 1) Fault("a number with a leading zero");
    bool integral = true;
    if (Peek() == '.') {
      integral = false;
      ++pos_;
      if (SkipDigits() == 0) Fault("expected a digit");
    }
    if (Peek() == 'e' || Peek() == 'E') {
      integral = false;
      ++pos_;
      if (Peek() == '+' || Peek() == '-') ++pos_;
      if (SkipDigits() == 0) Fault("expected a digit");
    }
    const char* first = text_.data() + start;
    const char* last = text_.data() + pos_;
    if (integral) return Convert<int64_t>(first, last);
    return Convert<double>(first, last);
  }

  template <typename T>
  Value Convert(const char* first, const char* last) {
    T value{};
    if (std::from_chars(first, last, value).ec != std::errc()) Fault("number out of range");
    return value;
  }

  std::string_view text_;
  size_t pos_ = 0;
};

void DumpString(const std::string& text, std::string* out) {
  static constexpr char kHex[] = "0123456789abcdef";
  out->push_back('"');
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      *out += "\\u00";
      out->push_back(kHex[c >> 4]);
      out->push_back(kHex[c & 15]);
    } else {
      out->push_back(c);
    }
  }
  out->push_back('"');
}

}  // namespace

const char* Value::TypeName() const {
  static constexpr const char* kNames[] = {"null",     "a boolean", "an integer", "a number",
                                           "a string", "an array",  "an object"};
  return kNames[data_.index()];
}

std::string Value::Dump() const {
  std::string out;
  DumpTo(&out);
  return out;
}

void Value::DumpTo(std::string* out) const {
  if (const bool* flag = As<bool>()) {
    *out += *flag ? "true" : "false";
  } else if (const int64_t* integer = As<int64_t>()) {
    *out += std::to_string(*integer);
  } else if (const double* number = As<double>()) {
    if (!std::isfinite(*number)) {
      *out += std::isnan(*number) ? "\"nan\"" : *number > 0 ? "\"inf\"" : "\"-inf\"";
      return;
    }
    char digits[40];
    auto [end, error] = std::to_chars(digits, digits + sizeof(digits), *number);
    if (error != std::errc()) Fail(ErrorKind::kGraph, "JSON: cannot print ", *number);
    std::string_view printed(digits, end - digits);
    *out += printed;
    if (printed.find_first_of(".e") == std::string_view::npos) *out += ".0";  // stays a float
  } else if (const std::string* text = As<std::string>()) {
    DumpString(*text, out);
  } else if (const Array* array = As<Array>()) {
    out->push_back('[');
    for (const Value& item : *array) {
      if (&item != array->data()) out->push_back(',');
      item.DumpTo(out);
    }
    out->push_back(']');
  } else if (const Object* object = As<Object>()) {
    out->push_back('{');
    for (const Member& member : *object) {
      if (&member != object->data()) out->push_back(',');
      DumpString(member.first, out);
      out->push_back(':');
      member.second.DumpTo(out);
    }
    out->push_back('}');
  } else {
    *out += "null";
  }
}

const Value* Find(const Object& object, std::string_view key) {
  for (const Member& member : object) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

Value Parse(std::string_view text) { return Parser(text).ParseDocument(); }

}  // namespace tvm_byoc_dnnl::json

namespace tvm_byoc_dnnl {
namespace {

/// What stands before the next space, which is taken away with it. A stream of each list would take
/// longer than all else that is read of a small graph.
std::string_view NextWord(std::string_view* text) {
  const std::string_view word = text->substr(0, text->find(' '));
  text->remove_prefix(std::min(word.size() + 1, text->size()));
  return word;
}

}  // namespace

std::vector<std::string> Words(const char* text) {
  std::vector<std::string> words;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view word = NextWord(&rest);
    if (!word.empty()) words.emplace_back(word);
  }
  return words;
}

bool HasWord(std::string_view text, std::string_view word) {
  while (!text.empty()) {
    if (NextWord(&text) == word) return !word.empty();
  }
  return false;
}

const json::Object& AsObject(const json::Value& value, const std::string& where) {
  return As<json::Object>(value, "an object", where);
}
const json::Array& AsArray(const json::Value& value, const std::string& where) {
  return As<json::Array>(value, "an array", where);
}
const std::string& AsString(const json::Value& value, const std::string& where) {
  return As<std::string>(value, "a string", where);
}
int64_t AsInteger(const json::Value& value, const std::string& where) {
  return As<int64_t>(value, "an integer", where);
}

double AsNumber(const json::Value& value, const std::string& where) {
  if (const int64_t* integer = value.As<int64_t>()) return static_cast<double>(*integer);
  if (const std::string* word = value.As<std::string>()) {
    if (*word == "inf") return std::numeric_limits<double>::infinity();
    if (*word == "-inf") return -std::numeric_limits<double>::infinity();
    if (*word == "nan") return std::numeric_limits<double>::quiet_NaN();
  }
  return As<double>(value, "a number, \"inf\", \"-inf\" or \"nan\"", where);
}

const json::Value& Field(const json::Object& object, const char* name, const std::string& where) {
  const json::Value* value = json::Find(object, name);
  if (value == nullptr) Fail(ErrorKind::kGraph, where, ": the field \"", name, "\" is missing");
  return *value;
}

void AllowOnly(const json::Object& object, const char* names, const std::string& where) {
  for (const json::Member& member : object) {
    if (!HasWord(names, member.first)) {
      Fail(ErrorKind::kGraph, where, ": unknown field \"", member.first, "\", expected ", names);
    }
  }
}

}  // namespace tvm_byoc_dnnl
