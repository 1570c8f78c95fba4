#!/usr/bin/env python3
"""Does each test that the table of paths names exist?  tests/cuda/paths.py docs/cuda.md

The table is the one whose first column is "weights"; its cells are `test_x: case` or -.  A case is a function of the
test, or a text in it."""
import pathlib, re, sys

COLUMNS = ["weights", "decode, prefill", "graphs", "guesses", "late masks", "2, 3, 4 ranks"]


def main(doc):
    rows, head = [], None
    for line in pathlib.Path(doc).read_text().splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and cells[0] == "weights":
            head = cells
        elif head and cells and not cells[0].startswith("---"):
            rows.append(cells)
        elif head and not cells:
            break
    wrong = [] if head == COLUMNS else [f"the columns are {head}, not {COLUMNS}"]
    for row in rows:
        wrong += [f"{row[0]}: {len(row)} cells"] * (len(row) != len(COLUMNS))
        for cell in row[1:]:
            named = re.findall(r"`(test_\w+): ([^`]+)`", cell)
            if not named and not cell.startswith("- "):
                wrong.append(f"{row[0]}: \"{cell}\" names no test, and gives no reason (- why)")
            for test, case in named:
                source = next(pathlib.Path("tests").rglob(test + ".cc"), None)
                if not source or case not in source.read_text() + pathlib.Path("tests/cuda/held.h").read_text():
                    wrong.append(f"{row[0]}: {test} has no {case}")
    for w in wrong:
        print(w)
    print(f"ok: {len(rows)} kinds of weights, {sum(len(re.findall('`test_', c)) for r in rows for c in r)} tests are there"
          if not wrong and rows else "the table of paths is wrong")
    return bool(wrong) or not rows


sys.exit(main(sys.argv[1]))
