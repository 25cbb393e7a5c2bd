#!/usr/bin/env python3
"""The table of ingress-nginx's end-to-end tests and the cases here that try the same, as Markdown.

    e2e.py
"""
from pathlib import Path

import areas  # noqa: F401  (adds cases)
from annotations import CASES


def rows():
    """Folder, file, number of cases, our cases, remark."""
    for line in (Path(__file__).parent / "e2e.tsv").read_text().splitlines():
        if not line.startswith("#"):
            name, count, cases, remark = line.split("\t")
            folder, _, file = name.partition("/")
            yield folder, file, int(count), cases.split(), remark


def main():
    """Prints the table, and checks that the cases that it names are there."""
    known = {name for name, _, _, _ in CASES}
    without, total, tried, used = 0, 0, 0, set()
    print("| theirs | cases | ours | remark |\n|---|---:|---|---|")
    for folder, file, count, cases, remark in rows():
        missing = set(cases) - known
        assert not missing, missing
        used |= set(cases)
        total += count
        without += not cases
        tried += count if cases else 0
        print(f"| {folder}/{file} | {count} | {', '.join(f'`{case}`' for case in cases) or '-'} | {remark} |")
    print(f"\n{total} cases in {sum(1 for _ in rows())} files; files without one here: {without}, "
          f"with {total - tried} cases. Cases here: {len(known)}, of which in no file of theirs: {len(known - used)}.")


if __name__ == "__main__":
    main()
