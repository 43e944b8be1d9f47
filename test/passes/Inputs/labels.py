"""Says whether all units of a figure have labels of one form, or none has one."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: labels.py FIGURE.svg
import sys, xml.etree.ElementTree

NAME = "{http://www.w3.org/2000/svg}"
figure = xml.etree.ElementTree.parse(sys.argv[1]).getroot()
elements = [one for one in figure if not one.get("class", "").startswith("part")]
labels = []
for one, following in zip(elements, elements[1:]):
    title = one.find(NAME + "title")
    if one.get("class", "").startswith("u ") and not title.text.endswith("U"):
        labels.append(following.text if following.get("class") == "unit" else None)
shown = [label for label in labels if label is not None]
dots = {"." in label for label in shown}
if not shown:
    print(len(labels), "units, none with a label")
elif len(shown) == len(labels) and len(dots) == 1:
    print(len(labels), "units, all with labels like", max(shown))
else:
    kinds = [max(label for label in shown if ("." in label) == dot) for dot in sorted(dots)]
    print(len(labels), "units,", len(shown), "with labels like", *kinds)
