// Random stages on random ranks, units in a random order that data allows, weights and gradients that travel.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/fuzz/Schedules.h"
#include <algorithm>
#include <set>
#include <vector>

namespace pp::fuzz {
namespace {

std::string number(int64_t value) { return std::to_string(value); }
std::string pair(int64_t a, int64_t b) { return "(" + number(a) + ", " + number(b) + ")"; }

std::string list(const std::vector<int64_t> &values) {
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i)
    text += (i ? ", " : "") + number(values[i]);
  return text + "]";
}

/// The sizes for which a schedule is drawn.
struct World {
  std::string model;     ///< gpt2, which ties its embedding and its head, or llama
  std::string modelMore; ///< arguments of the model
  std::string optimizer; ///< the call
  std::string trained;   ///< `freeze ..`, `lora ..`
};

/// Half of the worlds are plain; the others have windows, sinks, dropout, frozen weights, adapters, another
/// optimizer. With `cuts`, matrices may be cut, which Muon refuses.
World drawWorld(Dice &dice, bool tied, bool cuts) {
  World world{tied ? "gpt2" : "llama", "", "adamw(lr = 0.05)", ""};
  if (dice.oneIn(2))
    return world;
  if (tied) {
    const char *more[] = {"", "", ", residual_rate = 0.25", ", embed_rate = 0.5, residual_rate = 0.25"};
    world.modelMore = dice.pick(more);
  } else {
    // Weights that are cut must be large, and attention that runs ahead has no sinks.
    const char *more[] = {"",
                          "",
                          ", sliding_window = 2",
                          ", head_norms = true, qkv_bias = true",
                          ", fused = true",
                          ", plus = 1",
                          ", sinks = true",
                          ", sinks = true, sliding_window = 3"};
    world.modelMore = more[dice.below(cuts ? 3 : 8)];
  }
  const char *optimizers[] = {"adamw(lr = 0.05)", "adamw(lr = 0.05)", "sgd(lr = 0.05)", "muon(lr = 0.05)"};
  world.optimizer = optimizers[dice.below(cuts ? 3 : 4)];
  const char *trained[] = {"", "", tied ? "  freeze \"wte\", \"wpe\"\n" : "  freeze \"embed_tokens\"\n",
                           tied ? "  freeze \"h.0.\", \"mlp\"\n" : "  freeze \"layers.0.\", \"mlp\"\n",
                           tied ? "  lora rank = 1, alpha = 2, targets = [\"c_attn\", \"c_fc\"]\n"
                                : "  lora rank = 1, alpha = 2, targets = [\"o_proj\", \"down_proj\"]\n"};
  if (!cuts)
    world.trained = dice.pick(trained);
  return world;
}

/// The model, data and optimizer around a schedule. The vocabulary has a token for each place of a step, and its table
/// more than 32 elements for each of four ranks, so that it can be cut over them.
std::string trainText(const World &world, int64_t layers, const std::string &call) {
  std::string sizes = world.model == "gpt2" ? ", hidden = 4, heads = 2, vocab = 61, context = 4, ffn = 8"
                                            : ", hidden = 4, heads = 1, ffn = 6, vocab = 61";
  return "\ntrain fuzz {\n  model     " + world.model + "(layers = " + number(layers) + sizes + world.modelMore +
         ")\n  schedule  " + call + "\n  data      microbatch = 1, sequence = 4\n  optimizer " + world.optimizer +
         "\n  precision f64\n" + world.trained + "}\n";
}

Schedule finish(Schedule schedule, const World &world, int64_t layers, const std::string &call) {
  std::string model = "import \"std/models/" + world.model + ".pipe\"\n";
  schedule.head = model + schedule.head;
  schedule.tail += trainText(world, layers, call);
  schedule.single = model + "import \"std/single.pipe\"\n" +
                    trainText(world, layers, "single(microbatches = " + number(schedule.microbatches) + ")");
  return schedule;
}

//===-- Drawn unit by unit --------------------------------------------------------------------------------------===//

/// Emits units whose inputs are there, one after the other, until every unit has run once.
class Generator {
public:
  Generator(Dice &dice, int64_t size, bool moving) : dice(dice), moving(moving) {
    ranks = dice.between(moving ? 2 : 1, size + 2);
    stages = dice.between(1, size == 1 ? 3 : size == 2 ? 5 : 8);
    microbatches = dice.between(1, 2 * size);
    for (int64_t s = 0; s < stages; ++s) {
      home.push_back(dice.below(ranks));
      owner.push_back(moving ? dice.below(ranks) : home[s]);
      holders.push_back({home[s]});
      if (moving && dice.oneIn(3))
        holders[s].insert(dice.below(ranks));
      recomputed.push_back(dice.oneIn(4));
      splits.push_back(dice.below(3)); // B always, I and W always, drawn for each microbatch
      gradsMove.push_back(moving && dice.oneIn(2));
    }
    shares.resize(stages);
    homes = holders;
    where.assign(stages, std::vector<int64_t>(microbatches, -1));
    done.assign(stages, std::vector<Done>(microbatches));
    lean = dice.below(3);
    follow = dice.oneIn(2);
    grouped = dice.oneIn(2);
    // R written by the author, or put in by `recompute`, for whole stages or for parts inside them.
    if (dice.oneIn(3)) {
      recomputed.assign(size_t(stages), false);
      const char *drawn[] = {"pre", "post", "attn", "pre, post", "qkv, attn", "stage(0)", "stage(0), post"};
      recompute = std::string("  recompute ") + dice.pick(drawn) + "\n";
    }
  }

  Schedule run() {
    bool perRank = !moving && dice.oneIn(2);
    while (emitOne())
      ;
    if (moving)
      bringHome();
    Schedule schedule;
    schedule.kind = moving ? "moving" : "lists";
    schedule.head = "\nschedule fuzz(ranks p, microbatches m) {\n" + pieceText() + recompute;
    schedule.tail = "}\n";
    schedule.ranks = ranks;
    schedule.stages = stages;
    schedule.microbatches = microbatches;
    schedule.perRank = perRank;
    schedule.actions = lines;
    bool tied = dice.oneIn(2);
    return finish(schedule, drawWorld(dice, tied, /*cuts=*/false), stages,
                  "fuzz(ranks = " + number(ranks) + ", microbatches = " + number(microbatches) + ")");
  }

private:
  struct Done {
    bool forward = false, again = false, backward = false, half = false, weights = false;
  };
  struct Unit {
    char phase;
    int64_t stage, microbatch;
  };

  Dice &dice;
  bool moving, follow = false, grouped = false;
  int64_t ranks = 1, stages = 1, microbatches = 1, lean = 0;
  std::vector<int64_t> home, owner, splits;
  std::vector<std::set<int64_t>> holders, homes, shares; ///< by stage: ranks with its weights, with gradient shares
  std::vector<char> recomputed, gradsMove;
  std::vector<std::vector<int64_t>> where; ///< rank of a stage's microbatch
  std::vector<std::vector<Done>> done;
  std::vector<Schedule::Action> lines;
  std::string recompute;

  std::string pieceText() {
    if (!moving)
      return "  stage s of " + number(stages) + " at " + list(home) + "[s]\n";
    std::string places = "[";
    for (int64_t s = 0; s < stages; ++s)
      places += (s ? ", " : "") + list({homes[s].begin(), homes[s].end()});
    return "  stage s of " + number(stages) + " weight at " + places + "][s] opt at " + list(owner) + "[s]\n";
  }

  std::vector<Unit> readyUnits() {
    std::vector<Unit> ready;
    for (int64_t s = 0; s < stages; ++s)
      for (int64_t i = 0; i < microbatches; ++i) {
        Done &unit = done[s][i];
        if (!unit.forward) {
          if (s == 0 || done[s - 1][i].forward)
            ready.push_back({'F', s, i});
          continue;
        }
        if (!unit.backward && (s + 1 == stages || done[s + 1][i].backward)) {
          if (recomputed[s] && !unit.again)
            ready.push_back({'R', s, i});
          else
            ready.push_back({'B', s, i});
        }
        if (unit.half && !unit.weights)
          ready.push_back({'W', s, i});
      }
    return ready;
  }

  int64_t rankOf(const Unit &unit) {
    int64_t &rank = where[unit.stage][unit.microbatch];
    if (rank < 0)
      rank = !moving  ? home[unit.stage]
             : follow ? unit.microbatch % ranks // as WeiPipe: a microbatch stays on its rank
                      : dice.below(ranks);
    return rank;
  }

  bool emitOne() {
    std::vector<Unit> ready = readyUnits();
    if (ready.empty())
      return false;
    Unit unit = dice.pick(ready);
    for (int64_t again = 0; again < lean && unit.phase == 'F'; ++again) // lean towards backwards: fewer stashes
      unit = dice.pick(ready);
    int64_t rank = rankOf(unit);
    if (moving)
      bringWeights(unit.stage, rank);
    emit(unit, rank);
    if (moving && dice.oneIn(6))
      moveSomething();
    return true;
  }

  void emit(Unit unit, int64_t rank) {
    Done &state = done[unit.stage][unit.microbatch];
    char phase = unit.phase;
    if (phase == 'B' && (splits[unit.stage] == 1 || (splits[unit.stage] == 2 && dice.oneIn(2))))
      phase = 'I';
    state.forward |= phase == 'F';
    state.again |= phase == 'R';
    state.backward |= phase == 'B' || phase == 'I';
    state.half |= phase == 'I';
    state.weights |= phase == 'W';
    if (phase == 'B' || phase == 'W')
      shares[unit.stage].insert(rank);
    lines.push_back({rank, phase + pair(unit.stage, unit.microbatch)});
    if (moving && (phase == 'F' || phase == 'B' || phase == 'I') && dice.oneIn(6))
      relay(unit, phase == 'F', rank);
  }

  /// Moves the result of a unit explicitly to the rank of its next unit, perhaps over a third rank.
  void relay(Unit unit, bool forward, int64_t from) {
    int64_t next = unit.stage + (forward ? 1 : -1);
    if (next < 0 || next >= stages)
      return;
    int64_t to = rankOf({'F', next, unit.microbatch}), over = dice.below(ranks);
    if (from == to)
      return;
    std::string what = (forward ? "move act" : "move dact") + pair(unit.stage, unit.microbatch) + " from ";
    if (over != from && over != to) {
      lines.push_back({-1, what + number(from) + " to " + number(over)});
      from = over;
    }
    lines.push_back({-1, what + number(from) + " to " + number(to)});
  }

  std::string moveText(const char *thing, int64_t stage, int64_t from, int64_t to) {
    return std::string("move ") + thing + "(" + number(stage) + ") from " + number(from) + " to " + number(to);
  }

  int64_t drawFrom(const std::set<int64_t> &set) { return *std::next(set.begin(), dice.below(int64_t(set.size()))); }

  void bringWeights(int64_t stage, int64_t rank) {
    if (!holders[stage].insert(rank).second)
      return;
    std::set<int64_t> others = holders[stage];
    others.erase(rank);
    lines.push_back({-1, moveText("weight", stage, drawFrom(others), rank)});
  }

  /// A few weights and gradient shares change place, in one group or one after the other.
  void moveSomething() {
    std::vector<std::string> moves;
    std::vector<std::pair<int64_t, int64_t>> arriving, shared;
    for (int64_t s = 0; s < stages; ++s) {
      int64_t to = dice.below(ranks);
      if (dice.oneIn(3) && !holders[s].count(to)) {
        moves.push_back(moveText("weight", s, drawFrom(holders[s]), to));
        arriving.push_back({s, to});
      }
      if (!gradsMove[s] || shares[s].empty() || dice.oneIn(2))
        continue;
      int64_t from = drawFrom(shares[s]), target = dice.below(ranks);
      if (from == target)
        continue;
      moves.push_back(moveText("grad", s, from, target));
      shares[s].erase(from);
      shared.push_back({s, target});
    }
    for (auto [s, to] : arriving)
      holders[s].insert(to);
    for (auto [s, to] : shared)
      shares[s].insert(to);
    addMoves(moves);
  }

  void addMoves(const std::vector<std::string> &moves) {
    if (!grouped || moves.size() < 2) {
      for (const std::string &move : moves)
        lines.push_back({-1, move});
      return;
    }
    std::string text = "together {";
    for (const std::string &move : moves)
      text += " " + move;
    lines.push_back({-1, text + " }"});
  }

  /// The owner updates: it needs the weights, and, as who moves a thing once moves it always, all of the gradient.
  void bringHome() {
    for (int64_t s = 0; s < stages; ++s) {
      bringWeights(s, owner[s]);
      for (int64_t rank : shares[s])
        if (gradsMove[s] && rank != owner[s])
          lines.push_back({-1, moveText("grad", s, rank, owner[s])});
    }
  }
};

//===-- From the library ----------------------------------------------------------------------------------------===//

struct Library {
  const char *file, *name, *more;
  int64_t stagesPerRank;
  bool rounds;         ///< microbatches in whole rounds
  bool untied = false; ///< not with a model whose ends share weights
};

constexpr Library library[] = {
    {"weipipe", "weipipe_interleave", "", 1, true},
    {"weipipe", "weipipe_naive", "", 1, true},
    {"wzb1", "wzb1", "", 1, true},
    {"tawpipe", "tawpipe", "", 1, true},
    {"tawpipe", "tawpipe", ", prefetch = false", 1, true},
    {"fsdp", "fsdp", "", 1, true},
    {"zero", "zero", ", level = 1", 1, true},
    {"zero", "data_parallel", "", 1, true},
    {"zero", "zero", ", level = 2", 1, true},
    {"helixpipe", "helixpipe", ", folds = 1", 1, true},
    {"helixpipe", "helixpipe", ", folds = 1, ship = false, forget = true", 1, true},
    {"helixpipe", "helixpipe", ", folds = 1, cached = true, forget = true", 1, true},
    {"1f1b", "one_f_one_b", "", 1, false},
    {"zb_h", "zb_h", ", k = 2", 1, false},
    {"interleaved", "interleaved_1f1b", "", 2, true},
    {"zb_v", "zb_v", "", 2, false},
    {"gpipe", "gpipe", "", 1, false},
    {"gpipe_offload", "gpipe_offload", ", keep = 1", 1, false},
    {"gpipe_offload", "gpipe_offload", ", keep = 3, ahead = 2", 1, false},
    {"bpipe", "bpipe", "", 1, false},
    {"v_half", "v_half", "", 2, false},
    {"1f1b_recompute", "one_f_one_b_recompute", ", attention = false", 1, false},
    {"looped_bfs", "looped_bfs", "", 2, false},
    {"ring_of_nodes", "ring_of_nodes", "", 1, true},
    {"terapipe", "terapipe", ", slices = 2", 1, false},
    {"slimpipe", "slimpipe", ", slices = 3, exchange = false, vocabulary = false", 1, false},
    {"slimpipe", "slimpipe", ", slices = 4, vocabulary = false", 1, false},
    {"slimpipe", "slimpipe", ", slices = 4", 1, false},
    {"slimpipe", "slimpipe", ", slices = 3, exchange = false, offload = 100", 1, false},
    {"slimpipe", "slimpipe", ", slices = 4, vocabulary = false, offload = 50", 1, false},
    {"1f1b_vocabulary", "one_f_one_b_vocabulary", "", 1, false},
    {"slimpipe", "slimpipe", ", slices = 4, vocabulary = false, idle = \"all\", rule = \"pairs\", early = false", 1,
     false},
    {"chimera", "chimera", "", 1, false},
    {"hanayo", "hanayo", ", waves = 1", 2, false},
    {"hanayo", "hanayo", ", waves = 2", 4, false},
    {"replicated", "replicated_1f1b", ", level = 0", 1, true},
    {"replicated", "replicated_1f1b", ", level = 1", 1, true, true},
    {"replicated", "replicated_1f1b", ", level = 2", 1, true, true},
    {"ring_attention", "ring_attention", "", 1, false},
    {"ring_attention", "ring_attention", ", slices = 4", 1, false}, // in a zigzag on two ranks
    {"ring_attention", "ring_attention", ", slices = 4, sharded = true", 1, false, true},
};

/// Whether it needs an even number of ranks.
bool pairsRanks(const std::string &name) {
  static const std::set<std::string> names = {"wzb1",    "ring_of_nodes",   "tawpipe",
                                              "chimera", "replicated_1f1b", "ring_attention"};
  return names.count(name) != 0;
}

Schedule fromLibrary(Dice &dice, int64_t size, const std::vector<std::string> &names) {
  std::vector<Library> drawn;
  std::copy_if(std::begin(library), std::end(library), std::back_inserter(drawn), [&](const Library &each) {
    return names.empty() || std::find(names.begin(), names.end(), each.name) != names.end();
  });
  const Library &chosen = dice.pick(drawn);
  Schedule schedule;
  schedule.kind = chosen.name;
  schedule.ranks = dice.between(2, size + 1);
  if (pairsRanks(schedule.kind))
    schedule.ranks = size < 3 || dice.oneIn(2) ? 2 : 4;
  schedule.stages = schedule.ranks * chosen.stagesPerRank;
  int64_t rounds = std::max<int64_t>(1, std::min<int64_t>(3, 6 / schedule.ranks));
  schedule.microbatches = chosen.rounds ? schedule.ranks * dice.between(1, rounds) : dice.between(schedule.ranks, 6);
  std::string call = std::string(chosen.name) + "(ranks = " + number(schedule.ranks) +
                     ", microbatches = " + number(schedule.microbatches) + chosen.more + ")";
  schedule.head = std::string("import \"std/") + chosen.file + ".pipe\"\n";
  bool tied = dice.oneIn(2) && !chosen.untied;
  return finish(schedule, drawWorld(dice, tied, /*cuts=*/true), schedule.stages, call);
}

} // namespace

std::string Schedule::text() const {
  std::string body, first = hoist > 0 ? "# hoist " + number(hoist) + "\n" : "";
  for (int64_t r = 0; perRank && r < ranks; ++r) {
    body += "  on " + number(r) + " {";
    for (const Action &action : actions)
      body += action.rank == r ? " " + action.text : "";
    body += " }\n";
  }
  for (const Action &action : perRank ? std::vector<Action>() : actions)
    body += "  " + (action.rank < 0 ? action.text : "on " + number(action.rank) + " { " + action.text + " }") + "\n";
  return first + head + body + tail;
}

std::string mutateActions(Schedule &schedule, Dice &dice) {
  auto &actions = schedule.actions;
  if (actions.size() < 2)
    return "";
  int64_t count = int64_t(actions.size()), first = dice.below(count), second = dice.below(count);
  Schedule::Action &a = actions[size_t(first)], &b = actions[size_t(second)], copy = a;
  switch (dice.below(6)) {
  case 0:
    actions.erase(actions.begin() + first);
    return "action lost";
  case 1:
    actions.insert(actions.begin() + second, copy);
    return "action twice";
  case 2:
    std::swap(a, actions[size_t((first + 1) % count)]);
    return "actions swapped";
  case 3:
    std::swap(a, b);
    return "actions swapped";
  case 4: // what one unit should do, another does too
    if (a.rank < 0 || b.rank < 0)
      return "";
    std::swap(a.text, b.text);
    return "units exchanged";
  default:
    if (a.rank < 0)
      return "";
    a.rank = dice.below(schedule.ranks);
    return "unit on another rank";
  }
}

bool isInLibrary(const std::string &name) {
  return std::any_of(std::begin(library), std::end(library), [&](const Library &each) { return each.name == name; });
}

Schedule drawSchedule(Dice &dice, int64_t size, const std::vector<std::string> &names) {
  int64_t drawn = names.empty() ? dice.below(10) : 9;
  Schedule schedule = drawn >= 8 ? fromLibrary(dice, size, names) : Generator(dice, size, drawn >= 4).run();
  if (drawn >= 4 && dice.oneIn(3)) // some weights move
    schedule.hoist = dice.between(1, 3);
  return schedule;
}

} // namespace pp::fuzz
