"""Checks that no two entries of a figure's legend have one colour."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: distinct_colors.py FIGURE
import re, sys


def main():
    with open(sys.argv[1]) as file:
        text = file.read()
    of_class = dict(re.findall(r"\.([A-Z]\d+|part\d+) \{ fill: (#\w+); \}", text))
    seen = {}
    for by_class, fill, words in re.findall(r'<rect (?:class="(\w+)"|fill="(#\w+)") [^>]*width="12" '
                                            r'height="12"/>\n<text[^>]*>([^<]*)',
                                            text):
        color = fill or of_class[by_class]
        if color in seen:
            print(f"{sys.argv[1]}: {words} is {color}, as {seen[color]}")
            return 1
        seen[color] = words
    if len(seen) < 6:
        print(f"{sys.argv[1]}: expected a legend of phases and roles, got {list(seen.values())}")
    return int(len(seen) < 6)


if __name__ == "__main__":
    sys.exit(main())
