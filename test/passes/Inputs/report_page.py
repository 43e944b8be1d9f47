"""Checks a report: well-formed HTML that names nothing outside itself, and data that say what --emit=stats says."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: report_page.py REPORT STATS
import html.parser, json, sys

VOID = {"meta", "link", "br"}


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.ids, self.scripts, self.problems = [], set(), {}, []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        for name in ("src", "href"):
            if name in values and not values[name].startswith("data:"):
                self.problems.append(f"{tag} refers to {values[name]}")
        if "id" in values and values["id"] in self.ids:
            self.problems.append(f"id {values['id']} twice")
        self.ids.add(values.get("id"))
        if tag not in VOID:
            self.open.append((tag, values.get("id") or values.get("type")))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop()[0] != tag:
            self.problems.append(f"line {self.getpos()[0]}: </{tag}> closes nothing")

    def handle_data(self, text):
        if self.open and self.open[-1][0] == "script":
            name = self.open[-1][1]
            self.scripts[name] = self.scripts.get(name, "") + text


def check(data, stats, problems):
    def expect(what, ours, theirs):
        if abs(ours - theirs) > 1e-9 * max(1, abs(theirs)):
            problems.append(f"{what} is {ours}, --emit=stats says {theirs}")

    if data["stats"] != stats:
        problems.append("`stats` is not what --emit=stats says")
    for name in ("makespan", "span", "step"):
        expect(name, data[name] / data["ticks"], stats[name])
    expect("bubble", data["bubble"], stats["bubble"])
    sent = sum(rank["messages_sent"] for rank in stats["per_rank"])
    expect("messages from rank to rank", sum(message[2] >= 0 for message in data["messages"]), sent)
    for number, (rank, said) in enumerate(zip(data["ranks"], stats["per_rank"], strict=True)):
        work = [i for i, phase in enumerate(rank["phase"]) if phase != "U"]
        expect(f"rank {number}: units", len(work), said["units"])
        expect(f"rank {number}: busy", sum(rank["end"][i] - rank["start"][i] for i in work) / data["ticks"],
               said["busy"])
        expect(f"rank {number}: peak", rank["peak"], said["peak_at"]["total"])
        columns = {len(rank[name]) for name in ("name", "label", "phase", "piece", "start", "end", "task", "reads",
                                                "writes", "waits")}
        if len(columns) != 1:
            problems.append(f"rank {number}: columns of {columns} entries")
        for cause, entry in enumerate(data["causes"]):
            idle = sum(min(stop, data["makespan"]) - start for start, stop, its, _ in rank["idles"]
                       if its == cause and start < data["makespan"])
            expect(f"rank {number}: {entry['name']}", idle / data["ticks"], said["idle_by_cause"][entry["name"]])


def main():
    page = Page()
    with open(sys.argv[1]) as file:
        page.feed(file.read())
    with open(sys.argv[2]) as file:
        stats = json.load(file)
    problems = page.problems + [f"<{tag}> is never closed" for tag, _ in page.open]
    data = json.loads(page.scripts["data"])
    for name in page.scripts[None].split('byId("')[1:]:
        if name.split('"')[0] not in page.ids:
            problems.append(f"no element has the id {name.split(chr(34))[0]}")
    check(data, stats, problems)
    print("\n".join(problems) or f"a page of {sum(len(rank['name']) for rank in data['ranks'])} units")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
