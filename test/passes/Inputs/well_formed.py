"""Checks that a file is well-formed XML without a reference to anything outside of it."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: well_formed.py FILE
import sys, xml.etree.ElementTree


def main():
    for element in xml.etree.ElementTree.parse(sys.argv[1]).iter():
        for name, value in element.attrib.items():
            if name.endswith("href") or "url(" in value and "url(#" not in value:
                print(f"{sys.argv[1]}: {element.tag} refers to {value}")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
