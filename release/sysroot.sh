#!/usr/bin/env bash
# sysroot.sh FOLDER: unpack glibc 2.31 and libgomp of Debian 11 into FOLDER, to link against. Debian 10 had 2.28, but
# is no longer on the mirrors; release/check.py sees to it that the libraries need no symbol newer than 2.28.
# They come from this Debian's own mirror, or from MIRROR when that one has dropped Debian 11, too.
set -euo pipefail
MIRROR=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' | awk '$2 !~ /-/ {print $1; exit}')}
folder=$1
mkdir -p "$folder"

packages="
pool/main/g/glibc/libc6_2.31-13+deb11u11_amd64.deb 05f7264da867b37f4c5ce49266b558ea1e81e05a9464f623152fca70f3550282
pool/main/g/glibc/libc6-dev_2.31-13+deb11u11_amd64.deb e7f7b45d9c5cfcf37609f0b6efd3c645272c812144703af89dfd32218fcb0fd3
pool/main/l/linux/linux-libc-dev_5.10.223-1_amd64.deb e3be603bd12377bb90fcfb0f2048ca3a81c886e49d6f09945b82159d1c54f7b2
pool/main/g/gcc-10/libgomp1_10.2.1-6_amd64.deb 4530c95aefa48e33fd8cf4acbe5c4b559dbe7bdf4c56469986c83a203982cef1
"
echo "$packages" | while read -r path sum; do
  [ -n "$path" ] || continue
  deb=$folder/${path##*/}
  curl -fsSL -o "$deb" "${MIRROR%/}/$path"
  echo "$sum  $deb" | sha256sum --check --quiet
  dpkg-deb --extract "$deb" "$folder"
  rm "$deb"
done
# Absolute links would lead out of the folder.
find "$folder" -type l -lname '/*' -printf '%p %l\n' | while read -r link target; do
  ln -sfnr "$folder$target" "$link"
done
# GCC looks for its own library of C++ below the sysroot as well.
mkdir -p "$folder/usr/include/x86_64-linux-gnu"
ln -sfn /usr/include/c++ "$folder/usr/include/c++"
ln -sfn /usr/include/x86_64-linux-gnu/c++ "$folder/usr/include/x86_64-linux-gnu/c++"
ln -sfn libgomp.so.1 "$folder/usr/lib/x86_64-linux-gnu/libgomp.so"
