"""The layered drawing: edges go down, boxes keep apart, long edges go around."""

import random
from itertools import pairwise

import pytest

from tvm_byoc_dnnl.report.html import draw

WIDTH = 100.0


def random_graph(seed, n):
    rng = random.Random(seed)
    edges = {(rng.randrange(max(0, b - 12), b), b) for b in range(1, n) for _ in range(rng.randint(1, 3))}
    return [rng.uniform(60, 200) for _ in range(n)], sorted(edges)


GRAPHS = {
    "empty": ([], []),
    "one": ([WIDTH], []),
    "chain": ([WIDTH] * 4, [(0, 1), (1, 2), (2, 3)]),
    "diamond": ([WIDTH] * 4, [(0, 1), (0, 2), (1, 3), (2, 3)]),
    "skip": ([WIDTH] * 5, [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4), (1, 4)]),
    "late source": ([WIDTH] * 4, [(0, 1), (1, 2), (3, 2)]),
    "two parts": ([WIDTH] * 4, [(0, 1), (2, 3)]),
    "dense": random_graph(1, 60),
    "long": random_graph(2, 300),
}


@pytest.mark.parametrize(("widths", "edges"), GRAPHS.values(), ids=GRAPHS)
def test_boxes_keep_apart_and_edges_go_down(widths, edges):
    drawing = draw(widths, edges)
    rows = {}
    for (x, y), width in zip(drawing.boxes, widths, strict=True):
        rows.setdefault(y, []).append((x - width / 2, x + width / 2))
        assert x >= width / 2 and x + width / 2 <= drawing.width and 0 < y < drawing.height
    for row in rows.values():
        row.sort()
        assert all(a[1] < b[0] for a, b in pairwise(row))
    for (a, b), route in zip(edges, drawing.routes, strict=True):
        assert drawing.boxes[a][1] < drawing.boxes[b][1]
        assert route[0][0] == drawing.boxes[a][0] and route[-1][0] == drawing.boxes[b][0]
        assert all(p[1] <= q[1] for p, q in pairwise(route))


def test_a_chain_is_straight():
    assert len({x for x, _ in draw(*GRAPHS["chain"]).boxes}) == 1


@pytest.mark.parametrize("name", ["skip", "dense", "long"])
def test_long_edges_keep_off_the_boxes_they_pass(name):
    widths, edges = GRAPHS[name]
    drawing = draw(widths, edges)
    boxes = list(zip(drawing.boxes, widths, strict=True))
    for route in drawing.routes:
        for x, y in route[1:-1]:
            assert not any(abs(x - bx) < w / 2 for (bx, by), w in boxes if abs(y - by) <= 20)
    assert max(len(route) for route in drawing.routes) > 2


def test_a_source_stands_right_above_its_reader():
    boxes = draw(*GRAPHS["late source"]).boxes
    assert boxes[3][1] == boxes[1][1]


@pytest.mark.parametrize("name", ["chain", "dense", "long"])
def test_a_tall_graph_is_wrapped_into_columns(name):
    widths, edges = GRAPHS[name]
    tall, wrapped = draw(widths, edges), draw(widths, edges, (1000, 760))
    scale = lambda d: min(1000 / d.width, 760 / d.height)  # noqa: E731
    assert scale(wrapped) >= scale(tall) and (name != "long" or scale(wrapped) > 1.5 * scale(tall))
    boxes = [(x - w / 2, x + w / 2, y - 20, y + 20) for (x, y), w in zip(wrapped.boxes, widths, strict=True)]
    for i, a in enumerate(boxes):
        assert a[0] >= 0 and a[1] <= wrapped.width and a[2] >= 0 and a[3] <= wrapped.height
        assert not any(a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3] for b in boxes[i + 1 :])
    for (a, b), route in zip(edges, wrapped.routes, strict=True):
        (x0, y0), (x1, y1) = wrapped.boxes[a], wrapped.boxes[b]
        assert route[0] == (x0, y0 + 20) and route[-1] == (x1, y1 - 20)
        assert all(0 <= x <= wrapped.width and 0 <= y <= wrapped.height for x, y in route)


def test_a_cycle_is_refused():
    with pytest.raises(ValueError, match="cycle"):
        draw([WIDTH] * 2, [(0, 1), (1, 0)])


def test_same_graph_same_drawing():
    assert draw(*GRAPHS["dense"]) == draw(*GRAPHS["dense"])
