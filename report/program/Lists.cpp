// Writes the lists of a program: which posts are one message, what each action reads and makes, and what it ends.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "report/program/Lists.h"
#include "report/program/Canonical.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;
namespace json = llvm::json;

//===-- Lines and ties ------------------------------------------------------------------------------------------===//

Lines::Lines(ArrayRef<SourceText> sources) {
  for (const SourceText &source : sources)
    add(source.path, sha256(source.text));
}

int64_t Lines::add(StringRef path, json::Value hash) {
  auto [number, isNew] = numbers.try_emplace(path, entries.size());
  if (isNew)
    entries.push_back(json::Object{{"path", json::fixUTF8(path)}, {"sha256", std::move(hash)}});
  return number->second;
}

/// Of a call the place in the function, which is the inner one.
static FileLineColLoc placeOf(Location loc) {
  if (auto file = dyn_cast<FileLineColLoc>(loc))
    return file;
  if (auto call = dyn_cast<CallSiteLoc>(loc))
    return placeOf(call.getCallee());
  if (auto named = dyn_cast<NameLoc>(loc))
    return placeOf(named.getChildLoc());
  if (auto fused = dyn_cast<FusedLoc>(loc))
    for (Location part : fused.getLocations())
      if (FileLineColLoc file = placeOf(part))
        return file;
  return {};
}

json::Value Lines::of(Location loc) {
  FileLineColLoc place = placeOf(loc);
  if (!place)
    return nullptr;
  std::string loops = loopValues(loc), text = loops.empty() ? "" : "with " + loops, whole = lineOf(loc);
  if (size_t call = whole.find(" called at "); call != std::string::npos)
    text += whole.substr(call + text.empty());
  return json::Array{add(place.getFilename(), nullptr), place.getLine(), place.getColumn(), json::fixUTF8(text)};
}

static std::vector<Tie> tiesOf(const Pieces &pieces) {
  std::vector<Tie> ties;
  for (int64_t piece = 0; piece < pieces.size(); ++piece) {
    if (pieces.primary(piece) < 0)
      continue;
    Tie tie{pieces.primary(piece), {}, {}, {piece}};
    PieceOp op = pieces.op(piece);
    for (WeightAttr weight : op.getWeightsAttr().getAsRange<WeightAttr>())
      if (weight.getTied() && !weight.getFrozen()) {
        tie.weights.push_back(weight.getName());
        tie.names.push_back(weight.getDeclared().getName().strref());
      }
    auto same =
        llvm::find_if(ties, [&](const Tie &other) { return other.owner == tie.owner && other.weights == tie.weights; });
    if (same == ties.end())
      ties.push_back(tie);
    else
      same->sharers.push_back(piece);
  }
  return ties;
}

//===-- What slots hold -----------------------------------------------------------------------------------------===//

RankActions::RankActions(RankOp rank) {
  llvm::DenseSet<Value> scratch;
  for (auto launch : rank.getOps<LaunchOp>())
    scratch.insert(launch.getScratch());
  for (Operation &op : rank.getBody().front()) {
    auto position = static_cast<int64_t>(ops.size());
    if (auto slot = dyn_cast<SlotOp>(op)) {
      if (!scratch.contains(slot))
        values.try_emplace(slot, values.size());
      if (slot.getBinding() && slot.getBinding()->isThereBefore())
        write(slot, 0), touch(slot, -1);
      continue;
    }
    ops.push_back(&op);
    if (auto launch = dyn_cast<LaunchOp>(op)) {
      for (Value input : launch.getInputs())
        touch(input, position);
      for (Value result : launch.getResults())
        write(result, position);
    } else if (auto post = dyn_cast<PostOp>(op)) {
      if (Value slot = post.readSlot())
        touch(slot, position);
      if (Value slot = post.writtenSlot(); slot && slot != post.readSlot())
        write(slot, position);
    } else if (auto complete = dyn_cast<CompleteOp>(op)) {
      for (Value slot : complete.getRequest().getDefiningOp()->getOperands())
        touch(slot, position);
    }
  }
  for (auto [slot, life] : open)
    if (auto binding = slot.getDefiningOp<SlotOp>().getBinding(); binding && binding->isThereAfter())
      lives[life].segment.last = ops.size();
}

//===-- What a driver needs -------------------------------------------------------------------------------------===//

ProgramLists::ProgramLists(ProgramOp program, Lines &lines, json::Array &lanes, std::set<StringRef> &needs)
    : program(program), bodies(program->getParentOfType<ModuleOp>()), pieces(program), ties(tiesOf(pieces)),
      lines(lines), lanes(lanes), needs(needs) {
  for (auto rank : program.getOps<RankOp>())
    for (auto launch : rank.getOps<LaunchOp>())
      noteLaunch(launch, bodies.of(launch));
  for (auto rank : program.getOps<RankOp>())
    for (auto post : rank.getOps<PostOp>())
      addEnd(post, rank.getRank());
  for (auto rank : program.getOps<RankOp>())
    for (auto post : rank.getOps<PostOp>())
      notePost(post);
  for (auto rank : program.getOps<RankOp>())
    writeRank(rank);
  program.walk([&](SlotOp slot) {
    if (slot.getRole() == Role::state)
      needs.insert("states");
  });
}

void ProgramLists::noteLaunch(LaunchOp launch, BodyAttr body) {
  Phase phase = launch.getUnit().getPhase();
  if (phase == Phase::I || phase == Phase::W)
    needs.insert("halves");
  if (phase == Phase::R) {
    needs.insert("recompute");
    again.insert(pieces.find(launch.getUnit().getCoord()));
  }
  if (launch.getVersion())
    needs.insert("versions");
  if (!body)
    return;
  if (body.getCut())
    needs.insert("cuts");
  if (body.getVariant() == BodyVariant::judge || body.getVariant() == BodyVariant::redo)
    needs.insert("redo");
  if (body.getVariant() == BodyVariant::tie_out || body.getVariant() == BodyVariant::tie_fresh)
    tied.insert(launch.getResults().begin(), launch.getResults().end());
  if (body.getVariant() == BodyVariant::tie_in)
    tied.insert(launch.getInputs().back());
}

void ProgramLists::notePost(PostOp post) {
  Role role = post.getThing().getRole();
  PostKind kind = post.getKind();
  bool isWhole = *messages[numbers.lookup(post)].getAsObject()->get("of") == json::Value("all");
  bool isCut = post.getShard() != nullptr;
  if (post.isHost())
    needs.insert("host");
  else if (role == Role::stash)
    needs.insert("stash moves");
  else if (role == Role::weight && isWhole && !isCut)
    needs.insert("weight moves");
  else if (role == Role::grad && kind == PostKind::all_reduce)
    needs.insert("replicas");
  else if (role == Role::grad && isWhole && !isCut)
    needs.insert("grad moves");
  if (post.getGroup())
    needs.insert("together");
  if (pieces.isSkip(pieces.find(post.getThing().getCoord())))
    needs.insert("skips");
}

//===-- Messages ------------------------------------------------------------------------------------------------===//

/// The place in `lanes`, which all programs share.
int64_t ProgramLists::laneOf(json::Object lane) {
  json::Value wanted(std::move(lane));
  auto found = llvm::find(lanes, wanted);
  if (found != lanes.end())
    return found - lanes.begin();
  lanes.push_back(std::move(wanted));
  return lanes.size() - 1;
}

/// Which of the ties it carries, where it has what pieces share alone.
json::Value ProgramLists::tieOf(PostOp post) const {
  int64_t piece = pieces.find(post.getThing().getCoord());
  for (auto [number, tie] : llvm::enumerate(ties))
    if (tied.contains(post.getSlot()) && llvm::is_contained(tie.sharers, piece))
      return static_cast<int64_t>(number);
  return "all";
}

/// The k-th send of a path is the k-th receive, and the members of a group join in one order: proof 5.
void ProgramLists::addEnd(PostOp post, int64_t rank) {
  int64_t peer = post.getPeers().front(), channel = post.getChannel().value_or(0);
  bool receives = post.getKind() == PostKind::receive;
  auto key =
      post.isCollective()
          ? std::tuple(int64_t(-1), int64_t(-1), channel, post.getPeersAttr().getAsOpaquePointer())
          : std::tuple(receives ? peer : rank, receives ? rank : peer, channel, static_cast<const void *>(nullptr));
  Path &path = paths[key];
  if (std::exchange(path.rank, rank) != rank)
    path.posted[0] = path.posted[1] = 0;
  auto place = static_cast<size_t>(path.posted[receives]++);
  if (place == path.messages.size()) {
    messages.push_back(messageOf(post, rank, path));
    path.messages.push_back(messages.size() - 1);
  }
  numbers[post] = path.messages[place];
  if (json::Value tie = tieOf(post); tie != json::Value("all")) // a receiver may not know
    (*messages[path.messages[place]].getAsObject())["of"] = std::move(tie);
}

json::Object ProgramLists::messageOf(PostOp post, int64_t rank, Path &path) {
  CoordAttr coord = post.getThing().getCoord();
  SmallVector<int64_t> ranks(post.getPeers());
  StringRef kind = post.isHost() ? "host" : post.isCollective() ? stringifyPostKind(post.getKind()) : "p2p";
  if (!post.isCollective())
    ranks.insert(post.getKind() == PostKind::send ? ranks.begin() : ranks.end(), rank);
  if (path.messages.empty() && !post.isHost()) {
    path.lane = laneOf(post.isCollective() ? json::Object{{"kind", "group"}, {"ranks", json::Array(ranks)}}
                                           : json::Object{{"kind", "edge"}, {"from", ranks[0]}, {"to", ranks[1]}});
    for (auto &[ends, other] : paths)
      if (&other != &path && !other.messages.empty() && other.lane == path.lane)
        unnamed = post;
  }
  json::Object message{{"kind", kind},
                       {"role", stringifyRole(post.getThing().getRole())},
                       {"piece", pieceOf(coord)},
                       {"mb", coord.getMicrobatch()},
                       {"of", "all"},
                       {"lane", path.lane},
                       {"place", path.lane.getAsNull() ? json::Value(nullptr) : json::Value(path.messages.size())},
                       {"ranks", json::Array(ranks)},
                       {"root", post.getRoot() ? json::Value(*post.getRoot()) : json::Value(nullptr)},
                       {"together", post.getGroup() ? json::Value(*post.getGroup()) : json::Value(nullptr)},
                       {"line", lines.of(post.getLoc())}};
  if (pieces.isSkip(pieces.find(coord)))
    message["skip"] = coord.with(-1, -1).str();
  if (program.getSlices() > 0)
    message["slice"] = coord.getSlice();
  return message;
}

//===-- Ranks ---------------------------------------------------------------------------------------------------===//

json::Object ProgramLists::bindingOf(BindingAttr binding) const {
  json::Object bind{{"kind", stringifyBindingKind(binding.getKind())}};
  if (binding.getPiece()) {
    auto named = [&](PieceOp op) { return op.getSymName() == binding.getPiece().getValue(); };
    bind["piece"] = llvm::find_if(pieces.all(), named) - pieces.all().begin();
    bind["save"] = binding.getSave();
  }
  for (auto [name, number] : {std::pair("shard", binding.getShard()), std::pair("mb", binding.getMicrobatch()),
                              std::pair("slice", binding.getSlice())})
    if (number >= 0)
      bind[name] = number;
  for (auto [name, number] : {std::pair("back", binding.getBack()), std::pair("ahead", binding.getAhead())})
    if (number > 0)
      bind[name] = number;
  if (binding.isColumn())
    bind["number"] = binding.getNumber();
  return bind;
}

/// The coordinates of what a slot holds are those of the message that carries it, else those of the unit that makes it.
static CoordAttr coordOf(SlotOp slot) {
  CoordAttr coord;
  for (Operation *user : slot.getSlot().getUsers())
    if (auto post = dyn_cast<PostOp>(user))
      coord = post.getThing().getCoord();
  for (Operation *user : slot.getSlot().getUsers())
    if (auto launch = dyn_cast<LaunchOp>(user);
        launch && !coord && llvm::is_contained(launch.getResults(), slot.getSlot()))
      coord = launch.getUnit().getCoord();
  return coord;
}

json::Object ProgramLists::valueOf(SlotOp slot) const {
  json::Value piece = nullptr;
  int64_t microbatch = -1;
  json::Object value{
      {"role", stringifyRole(slot.getRole())}, {"label", slot.getLabel()}, {"host", slot.getHost()}, {"bind", nullptr}};
  CoordAttr coord = coordOf(slot);
  bool isSum = slot.getRole() == Role::weight || slot.getRole() == Role::grad || slot.getRole() == Role::opt;
  if (coord)
    piece = pieceOf(coord), microbatch = isSum ? -1 : coord.getMicrobatch();
  if (auto binding = slot.getBindingAttr()) {
    json::Object bind = bindingOf(binding);
    if (const json::Value *bound = bind.get("piece"))
      piece = *bound;
    else if (binding.getKind() == BindingKind::norm)
      piece = nullptr;
    microbatch = binding.getMicrobatch();
    value["bind"] = std::move(bind);
  }
  value["piece"] = std::move(piece);
  value["mb"] = microbatch;
  return value;
}

json::Array ProgramLists::actionOf(Operation *op, const RankActions &actions, json::Array dead) {
  auto number = [&](Value slot) { return actions.values.lookup(slot); };
  if (auto launch = dyn_cast<LaunchOp>(op)) {
    CoordAttr coord = launch.getUnit().getCoord();
    BodyAttr body = bodies.of(launch);
    json::Array action{"run",
                       stringifyPhase(launch.getUnit().getPhase()),
                       stringifyBodyVariant(body ? body.getVariant() : BodyVariant::plain),
                       pieceOf(coord),
                       coord.getMicrobatch(),
                       json::Array(llvm::map_range(launch.getInputs(), number)),
                       json::Array(llvm::map_range(launch.getResults(), number)),
                       lines.of(launch.getLoc()),
                       std::move(dead)};
    if (program.getSlices() > 0)
      action.push_back(coord.getSlice());
    return action;
  }
  auto complete = dyn_cast<CompleteOp>(op);
  auto post = complete ? complete.getRequest().getDefiningOp<PostOp>() : cast<PostOp>(op);
  StringRef end = post.isCollective() ? "member" : stringifyPostKind(post.getKind());
  json::Array action{complete ? "wait" : "post", numbers.lookup(post), end};
  if (!complete)
    action.push_back(number(post.getSlot()));
  if (!complete)
    action.push_back(post.getShard() ? json::Value(number(post.getShard())) : json::Value(nullptr));
  action.push_back(lines.of(op->getLoc()));
  action.push_back(std::move(dead));
  return action;
}

/// The most units with a stash on the device: several slots of one unit count once.
static int64_t mostStashes(ArrayRef<ValueLife> lives) {
  llvm::MapVector<CoordAttr, SmallVector<Segment>> units;
  for (auto [slot, segment] : lives)
    if (SlotOp(slot).getRole() == Role::stash && !SlotOp(slot).getHost() && segment.last >= segment.first)
      units[coordOf(slot)].push_back(segment);
  SmallVector<Segment> alive;
  for (auto &[coord, segments] : units) {
    llvm::sort(segments, [](Segment a, Segment b) { return a.first < b.first; });
    alive.push_back(segments.front());
    for (Segment segment : llvm::drop_begin(segments))
      if (segment.first > alive.back().last)
        alive.push_back(segment);
      else
        alive.back().last = std::max(alive.back().last, segment.last);
  }
  return mostAlive(alive);
}

/// The most things of a kind that are alive at one action.
json::Object ProgramLists::countsOf(const RankActions &actions) const {
  auto most = [&](llvm::function_ref<bool(SlotOp)> counts) {
    SmallVector<Segment> alive;
    for (const ValueLife &life : actions.lives)
      if (life.segment.last >= life.segment.first && counts(life.slot))
        alive.push_back(life.segment);
    return mostAlive(alive);
  };
  auto isUsed = [](SlotOp slot, llvm::function_ref<bool(Operation *)> by) {
    return llvm::any_of(slot.getSlot().getUsers(), by);
  };
  auto ofRole = [&](Role role) {
    return most([&](SlotOp slot) { // a shard is no thing of its own
      bool isShard = (slot.getBinding() && slot.getBinding()->getShard() >= 0) || isUsed(slot, [&](Operation *user) {
                       auto post = dyn_cast<PostOp>(user);
                       return post && post.getShard() == slot.getSlot();
                     });
      return slot.getRole() == role && !isShard;
    });
  };
  auto isGuest = [&](SlotOp slot) {
    return slot.getRole() == Role::stash && !slot.getHost() &&
           isUsed(slot,
                  [](Operation *user) {
                    auto post = dyn_cast<PostOp>(user);
                    return post && post.getKind() == PostKind::receive && !post.isHost();
                  }) &&
           !isUsed(slot, llvm::IsaPred<LaunchOp>);
  };
  SmallVector<Segment> flights;
  llvm::DenseMap<Operation *, int64_t> posted;
  for (auto [position, op] : llvm::enumerate(actions.ops)) {
    posted[op] = position;
    if (auto complete = dyn_cast<CompleteOp>(op))
      flights.push_back({posted.lookup(complete.getRequest().getDefiningOp()), static_cast<int64_t>(position)});
  }
  return json::Object{{"stashes", mostStashes(actions.lives)},
                      {"weights", ofRole(Role::weight)},
                      {"grads", ofRole(Role::grad)},
                      {"acts", ofRole(Role::act)},
                      {"dacts", ofRole(Role::dact)},
                      {"guests", most(isGuest)},
                      {"host_stashes", most([](SlotOp slot) { return slot.getHost(); })},
                      {"messages", mostAlive(flights)}};
}

void ProgramLists::writeRank(RankOp rank) {
  RankActions actions(rank);
  json::Array values, list;
  for (auto slot : rank.getOps<SlotOp>())
    if (actions.values.contains(slot.getSlot())) {
      if (slot.getBinding() && slot.getBinding()->getShard() >= 0)
        needs.insert("shards");
      if (slot.getBinding() && slot.getBinding()->getKind() == BindingKind::previous)
        needs.insert("versions");
      values.push_back(valueOf(slot));
    }
  std::vector<SmallVector<int64_t, 2>> dead(actions.ops.size());
  for (const ValueLife &life : actions.lives)
    if (int64_t last = life.segment.last; last >= 0 && last < static_cast<int64_t>(dead.size()))
      if (auto number = actions.values.find(SlotOp(life.slot).getSlot()); number != actions.values.end())
        dead[last].push_back(number->second);
  for (auto [op, gone] : llvm::zip(actions.ops, dead)) {
    llvm::sort(gone);
    list.push_back(actionOf(op, actions, json::Array(gone)));
  }
  counts.push_back(countsOf(actions));
  programs.push_back(
      json::Object{{"rank", rank.getRank()}, {"values", std::move(values)}, {"actions", std::move(list)}});
}
