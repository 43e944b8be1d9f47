// Binds a training program and elaborates it: the options of `train`, the command line's overrides, the defaults.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/Train.h"
#include "dialect/pipeline/Clauses.h"
#include "dialect/pipeline/Products.h"
#include "frontend/Cluster.h"
#include "frontend/Mesh.h"
#include "frontend/Settings.h"
#include "frontend/TrainedWeights.h"
#include "frontend/evaluate/Parameters.h"
#include "frontend/expand/Expand.h"
#include "frontend/model/Model.h"
#include "frontend/schedule/Elaborator.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/Support/SaveAndRestore.h"

using namespace llvm;
using namespace pp;

namespace {
/// Evaluates arguments and defaults; the defaults of a schedule may speak of the model's layers and of the cluster.
class ArgumentEvaluator : public Evaluator {
public:
  using Evaluator::Evaluator;
  int64_t layers = 0;
  bool isUnknown = false;                  ///< so is all of them, because what says it is wrong
  std::optional<int64_t> ranksPerNode = 0; ///< nothing: a node has no whole ranks
  const Schedule *schedule = nullptr;      ///< whose parameters `scope` binds, one after the other
  Scope *scope = nullptr;

private:
  std::optional<FailureOr<Value>> predefined(StringRef name, SMLoc at) override {
    if (isUnknown && (name == "layers" || name == "nodes"))
      return failure();
    if (name == "layers" && layers)
      return Value(layers);
    const Value *ranks = name == "nodes" ? this->ranks() : nullptr;
    if (!ranks)
      return std::nullopt;
    if (failed(reserve(at, *ranks->asInt())))
      return failure();
    if (!ranksPerNode)
      return noNodes(*this, at);
    return nodesOf(*ranks->asInt(), *ranksPerNode);
  }
  void addNames(SmallVectorImpl<StringRef> &names) override {
    if (layers)
      names.push_back("layers");
    if (ranks())
      names.push_back("nodes");
  }
  const Value *ranks() {
    for (const Parameter &parameter : schedule ? schedule->parameters : ArrayRef<Parameter>())
      if (Binding *bound = parameter.role == "ranks" ? scope->find(parameter.name.text) : nullptr)
        return &bound->value;
    return nullptr;
  }
};

class TrainBinder {
public:
  TrainBinder(Source &source, const Declarations &declared, const FrontendOptions &options, CommandLine &commandLine,
              mlir::ModuleOp module)
      : source(source), declared(declared), options(options), commandLine(commandLine), module(module),
        builder(source.context), evaluator(source, options.budget) {
    for (const Function *function : declared.functions)
      evaluator.globals.bindings.push_back({function->name, Value(), false, function, {}, function->isWrong});
    evaluator.isIncomplete = declared.isIncomplete;
    evaluator.attempt = options.attempt;
  }

  /// All errors are told, but for those that only follow from another one: of what depends on something that is wrong,
  /// or that could not be read, nothing is said.
  LogicalResult run() {
    FailureOr<std::vector<Override>> defines = commandLine.readDefines();
    if (failed(defines))
      return failure();
    overrides = std::move(*defines);
    if (failed(pickTrain()))
      return failure();
    bool isRight = isTrainRight && isTrainWhole;
    isRight &= succeeded(pickCallees());
    isRight &= succeeded(pickCluster());
    isRight &= succeeded(resolveOverrides());
    if (isRight && !declared.isIncomplete)
      warnOfUnreadParameters();
    setUsers();
    ModelOutline outline = bindModel();
    known.mesh = succeeded(mesh.read(train ? train->options : ArrayRef<Option>(), overrides, trainScope, outline)) &&
                 knows("mesh");
    known.cluster = succeeded(readCluster());
    evaluator.isUnknown = outline.isUnknown || !known.mesh || !known.cluster;
    known.sizes = succeeded(bindSchedule());
    for (auto [option, _] : settings.all()) {
      bool isRead = succeeded(readSettings(option));
      isRight &= isRead;
      known.data &= option != "data" || (isRead && knows("data"));
    }
    isRight &= succeeded(trained.read(find("freeze"), find("lora"), overrides, trainScope));
    known.precision = succeeded(readPrecisions()) && knows("precision");
    isRight &= succeeded(readProducts());
    if (options.precision.empty() && isRight && known.precision)
      isRight = succeeded(settings.checkOptimizer(evaluator, precision));
    isRight &= known.model && known.mesh && known.cluster && known.sizes && known.data && known.precision;
    if (options.aloneMicrobatches && isRight)
      runAlone();
    return elaborate(outline, isRight);
  }

private:
  /// What is read without an error.
  struct {
    bool model = false, mesh = false, cluster = false, sizes = false, data = true, precision = false;
  } known;

  /// Errors in files of the library are told where the program asks for what they declare.
  void setUsers() {
    SMLoc drawnAt = commandLine.schedule.isValid() ? commandLine.schedule : schedule ? schedule->name.at : SMLoc();
    if (model)
      source.setUser(model->name.at, modelCall ? modelCall->at : drawnAt);
    for (const ModelBlock *block : declared.blocks)
      source.setUser(block->name.at, modelCall ? modelCall->at : drawnAt);
    if (schedule)
      source.setUser(schedule->name.at, scheduleCall ? scheduleCall->at : drawnAt);
    if (cluster)
      source.setUser(cluster->name.at, clusterAt);
  }

  //===-- What to train -----------------------------------------------------------------------------------------===//

  LogicalResult pickTrain() {
    bool drawsOne = !options.schedule.empty() && !declared.chosen;
    if (!drawsOne && declared.trains.size() > 1)
      return evaluator.fail(declared.trains[1]->name.at, "a program has one `train`, got a second one",
                            declared.trains[0]->name.at, "the first one is here");
    if (!drawsOne && !declared.trains.empty()) {
      train = declared.trains[0];
      isTrainRight = succeeded(bindTrain());
      isTrainWhole = succeeded(checkOptions()) && !train->isWrong;
      return success();
    }
    if (!drawsOne && declared.isWrong) // what to draw, and with which sizes, may be what could not be read
      return failure();
    if (!drawsOne && (declared.chosen || declared.schedules.size() == 1)) {
      schedule = declared.chosen ? declared.chosen : declared.schedules[0];
      return success();
    }
    if (!drawsOne)
      return evaluator.fail(declared.begin, "this file has no `train`; name the schedule to draw with --schedule=NAME",
                            declared.begin, thereAre(namesOf(declared.schedules)));
    return find(declared.schedules, "schedule", {options.schedule, commandLine.schedule}, schedule);
  }

  // Its own parameters must be known before its options, so their overrides are resolved here.
  LogicalResult bindTrain() {
    Callee callee{"train", train->name, train->parameters};
    for (Override &given : overrides) {
      StringRef name = given.name;
      if (callee.find(name.consume_front("train.") ? name : StringRef(given.name))) {
        given.owner = "train";
        given.parameter = name;
      }
    }
    evaluator.isIncomplete |= train->isHeadWrong;
    return train->isHeadWrong ? failure()
                              : bindParameters(evaluator, callee, nullptr, trainScope, overrides, trainScope);
  }

  LogicalResult checkOptions() {
    static const StringRef known[] = {"model",    "schedule", "data",   "mlp",  "optimizer", "precision", "gradients",
                                      "products", "cluster",  "freeze", "lora", "mesh",      "names"};
    bool isKnown = true;
    for (const Option &option : train->options) {
      const Option *first = find(option.name.text);
      if (!is_contained(known, option.name.text))
        isKnown = succeeded(evaluator.fail(
            option.name.at, "`train` has no option `" + option.name.text + "`" + didYouMean(option.name.text, known),
            option.name.at, thereAre(known)));
      else if (first != &option && option.parts.empty())
        isKnown = succeeded(evaluator.fail(option.name.at, "option `" + option.name.text + "` is given twice",
                                           first->name.at, "first given here"));
    }
    return success(isKnown);
  }

  /// Whether it is known what `train` says of this.
  bool knows(StringRef option) { return isTrainWhole || find(option); }

  const Option *find(StringRef name) {
    auto found = find_if(train ? train->options : ArrayRef<Option>(),
                         [&](const Option &option) { return option.name.text == name && option.parts.empty(); });
    return train && found != train->options.end() ? found : nullptr;
  }

  template <typename T>
  LogicalResult find(const std::vector<const T *> &all, StringRef kind, Name name, const T *&found) {
    for (const T *one : all)
      if (one->name.text == name.text)
        found = one;
    if (found && !found->isHeadWrong)
      return success();
    if (std::exchange(found, nullptr) || declared.isIncomplete)
      return failure();
    SmallVector<StringRef> names = namesOf(all);
    return evaluator.fail(name.at, "there is no " + kind + " `" + name.text + "` here" + didYouMean(name.text, names),
                          name.at, thereAre(names));
  }

  template <typename T> static SmallVector<StringRef> namesOf(const std::vector<const T *> &all) {
    SmallVector<StringRef> names;
    for (const T *one : all)
      names.push_back(one->name.text);
    return names;
  }

  // `model llama(..)`, or the call that `model choose ..` picks.
  FailureOr<const Expr *> callOf(StringRef name) {
    const Option *option = find(name);
    if (!option && !isTrainWhole)
      return failure();
    if (!option)
      return evaluator.fail(train->name.at, "train `" + train->name.text + "` names no " + name);
    const Expr *call = option->value;
    if (option->chooser) {
      FailureOr<Value> wanted = evaluator.evaluate(option->chooser, trainScope);
      if (failed(wanted))
        return failure();
      SMLoc at = originOf(option->chooser, trainScope);
      if (!wanted->asString())
        return evaluator.fail(at, "expected a string after `choose`, got " + wanted->type() + " " + wanted->text());
      SmallVector<StringRef> labels;
      for (const Choice &choice : option->choices)
        for (const Name &label : choice.labels) {
          labels.push_back(label.text);
          if (label.text == *wanted->asString())
            call = choice.call;
        }
      if (!call)
        return evaluator.fail(at,
                              "there is no " + name + " `" + *wanted->asString() + "` to choose" +
                                  didYouMean(*wanted->asString(), labels),
                              option->chooser->at, thereAre(labels));
    }
    if (!call || (call->kind != Expr::Call && call->kind != Expr::Variable))
      return evaluator.fail(option->name.at, "expected a " + name + " with its arguments after `" + name + "`");
    return call;
  }

  LogicalResult pickCallees() {
    if (!train)
      return pickDrawnModel();
    bool isRight = succeeded(pick("model", declared.models, modelCall, model));
    if (failed(pick("schedule", declared.schedules, scheduleCall, schedule)))
      return failure();
    if (declared.chosen && declared.chosen != schedule) {
      replaced = schedule, replacedCall = scheduleCall;
      schedule = declared.chosen, scheduleCall = nullptr;
    }
    return success(isRight);
  }

  template <typename T>
  LogicalResult pick(StringRef kind, const std::vector<const T *> &all, const Expr *&callee, const T *&found) {
    FailureOr<const Expr *> call = callOf(kind);
    if (failed(call) || failed(find(all, kind, {(*call)->name, (*call)->at}, found)))
      return failure();
    callee = *call;
    return success();
  }

  // The cluster of the command line, else that of `train`, else none.
  LogicalResult pickCluster() {
    if (!options.cluster.empty()) {
      clusterAt = commandLine.cluster;
      return find(declared.clusters, "cluster", {options.cluster, clusterAt}, cluster);
    }
    if (knows("cluster") && !find("cluster"))
      return success();
    if (failed(pick("cluster", declared.clusters, clusterCall, cluster)))
      return failure();
    clusterAt = clusterCall->at;
    return success();
  }

  LogicalResult readCluster() {
    if (!cluster)
      return success(knows("cluster") && !find("cluster") && options.cluster.empty());
    if (failed(bindParameters(evaluator, calleeOf(cluster), clusterCall, trainScope, overrides, clusterScope)))
      return failure();
    FailureOr<ClusterOutline> read = outlineCluster(evaluator, *cluster, clusterScope, source.context);
    if (failed(read))
      return failure();
    clusterOutline = *read;
    evaluator.ranksPerNode = mesh.ranksPerNode(read->ranksPerNode);
    return success();
  }

  // A schedule alone is drawn with the first model at hand, small where nothing is said about it.
  LogicalResult pickDrawnModel() {
    if (declared.models.empty())
      return evaluator.fail(schedule->name.at, "there is no model to draw this schedule with");
    if (declared.models[0]->isHeadWrong || declared.isIncomplete)
      return failure();
    model = declared.models[0];
    static const std::pair<const char *, int64_t> sizes[] = {
        {"hidden", 64}, {"heads", 4}, {"ffn", 176}, {"vocab", 256}};
    for (auto [name, size] : sizes)
      if (calleeOf(model).find(name))
        overrides.insert(overrides.begin(), {name, Value(size), "model", name, SMLoc(), SMLoc()});
    return success();
  }

  /// Without a name and parameters where it is not known.
  static Callee calleeOf(const Declaration *one, StringRef kind) {
    return one ? Callee{kind, one->name, one->parameters} : Callee{kind, {}, {}};
  }
  Callee calleeOf(const Schedule *one) { return calleeOf(one, "schedule"); }
  Callee calleeOf(const Model *one) { return calleeOf(one, "model"); }
  Callee calleeOf(const Cluster *one) { return calleeOf(one, "cluster"); }

  /// The overrides. If another schedule replaces the one that `train` names, the ranks, microbatches and slices of the
  /// named one come first. A later value of the same name counts.
  FailureOr<std::vector<Override>> withSizes() {
    std::vector<Override> given;
    bool isCall = replaced && replacedCall->kind == Expr::Call;
    for (size_t i = 0; isCall && i < replacedCall->operands.size(); ++i) {
      StringRef label = replacedCall->labels[i].text;
      const Expr *value = replacedCall->operands[i];
      const Parameter *parameter = !label.empty()                    ? calleeOf(replaced).find(label)
                                   : i < replaced->parameters.size() ? &replaced->parameters[i]
                                                                     : nullptr;
      if (!parameter || parameter->role.empty() || !calleeOf(schedule).find(parameter->role))
        continue;
      FailureOr<Value> size = evaluator.evaluate(value, trainScope);
      if (failed(size))
        return failure();
      given.push_back(
          {parameter->role.str(), *size, "schedule", parameter->role, value->at, originOf(value, trainScope)});
    }
    given.insert(given.end(), overrides.begin(), overrides.end());
    return given;
  }

  LogicalResult bindSchedule() {
    if (!schedule)
      return failure();
    evaluator.schedule = schedule;
    evaluator.scope = &scheduleScope;
    FailureOr<std::vector<Override>> given = withSizes();
    bool isBound = succeeded(bindParameters(evaluator, calleeOf(schedule), scheduleCall, trainScope,
                                            failed(given) ? overrides : *given, scheduleScope));
    return success(succeeded(given) && isBound);
  }

  /// `names "language_model."`: what stands in front of the names of weights in checkpoints.
  FailureOr<StringRef> readNames() {
    const Option *written = find("names");
    if (!written)
      return StringRef();
    if (written->value && written->value->kind == Expr::String)
      return written->value->name;
    return evaluator.fail(written->name.at, "expected a text after `names`, which stands in front of the names of "
                                            "weights in checkpoints");
  }

  /// After an error, with all that does not depend on what is wrong.
  ModelOutline bindModel() {
    if (!model) {
      ModelOutline unknown;
      unknown.isIncomplete = unknown.isUnknown = true;
      return unknown;
    }
    known.model = succeeded(bindParameters(evaluator, calleeOf(model), modelCall, trainScope, overrides, modelScope));
    noteModelSizes();
    bool isExpanded =
        model->layerVariables.empty() && none_of(model->parts, [](const ModelPart &part) { return part.condition; });
    if (known.model && succeeded(expandLayers(source, evaluator, *model, modelScope, expanded))) {
      FailureOr<StringRef> prefix = readNames();
      known.model = succeeded(prefix) &&
                    succeeded(expandBlocks(source, evaluator, declared.blocks, modelScope, *prefix, expanded));
      model = &expanded.model;
      isExpanded = true;
    }
    SaveAndRestore quiet(evaluator.isQuiet, model->isWrong || !isExpanded);
    ModelOutline outline = outlineModel(evaluator, *model, modelScope);
    outline.isIncomplete |= model->isWrong;
    outline.isUnknown |= !isExpanded;
    known.model &= !outline.isUnknown;
    evaluator.layers = outline.layers;
    return outline;
  }

  //===-- What --check asks for ---------------------------------------------------------------------------------===//

  void noteModelSizes() {
    for (const Binding &bound : modelScope.bindings)
      if (const int64_t *size = options.modelSizes ? bound.value.asInt() : nullptr)
        options.modelSizes->push_back({bound.name.text.str(), *size});
  }

  // The plainest step of the same training: nothing is recomputed or cut.
  void runAlone() {
    schedule = declared.single;
    scheduleScope.bindings.clear();
    scheduleScope.bind(schedule->parameters.front().name, Value(options.aloneMicrobatches));
    settings.mlp[0].value = 1;
    settings.data[0].value *= static_cast<double>(mesh.replicas()); // the rows of all replicas
  }

  //===-- The command line --------------------------------------------------------------------------------------===//

  /// `optimizer muon(..)`, or `-D optimizer=muon`, which leaves the file's settings that muon has as they are.
  LogicalResult chooseOptimizer() {
    if (const Option *written = find("optimizer")) {
      const Expr *call = written->value;
      bool isCall = call && (call->kind == Expr::Call || call->kind == Expr::Variable);
      if (failed(chooseOptimizer(call ? call->at : written->name.at, isCall ? call->name : StringRef())))
        return failure();
    }
    for (Override &given : overrides) {
      if (given.name != "optimizer" || calleeOf(schedule).find(given.name))
        continue;
      given.owner = "chosen";
      const StringRef *word = given.value.asString();
      if (failed(chooseOptimizer(given.valueAt, word ? *word : StringRef())))
        return failure();
    }
    return success();
  }

  LogicalResult chooseOptimizer(SMLoc at, StringRef kind) {
    if (settings.choose(kind))
      return success();
    std::string all;
    interleave(
        kOptimizers, [&](StringRef one) { all += ("`" + one + "(lr = .., ..)`").str(); }, [&] { all += ", "; });
    return evaluator.fail(at, "expected an optimizer; there are " + all + didYouMean(kind, kOptimizers));
  }

  LogicalResult resolveOverrides() {
    if (failed(chooseOptimizer()))
      return failure();
    bool isKnown = true;
    for (Override &given : overrides)
      isKnown &= !given.owner.empty() || succeeded(resolve(given));
    if (!isKnown)
      return failure();
    for (const Override &given : overrides)
      if (options.scheduleDefines && given.owner == "schedule")
        options.scheduleDefines->push_back(given.name);
    return success();
  }

  LogicalResult resolve(Override &given) {
    auto [owner, name] = StringRef(given.name).split('.');
    bool isDotted = !name.empty();
    if (!isDotted) {
      name = owner;
      owner = !calleeOf(schedule).find(name) && !train && calleeOf(model).find(name) ? "model" : "schedule";
    }
    given.owner = owner;
    given.parameter = name;
    if (is_contained({"freeze", "recompute", "products"}, given.name) && !calleeOf(schedule).find(given.name)) {
      given.owner = given.parameter;
      return success();
    }
    bool isUnknown = (owner == "schedule" && !schedule) || (!isDotted && !train && !model) ||
                     (owner == "model" && !model) || (owner == "cluster" && !cluster && !knows("cluster")) ||
                     (owner == "optimizer" && !knows("optimizer"));
    if (isUnknown || (train && train->isHeadWrong && (!isDotted || owner == "train")))
      return success();
    if (owner == "lora")
      return trained.checkName(given.at, name);
    if (owner == "mesh")
      return mesh.checkName(given.at, name);
    for (const Callee &callee : callees())
      if (callee.kind == owner)
        return callee.find(name) ? success() : noParameter(given, callee);
    for (auto [option, _] : settings.all())
      if (owner == option)
        return settings.check(evaluator, given.at, owner, name);
    if (owner == "cluster")
      return evaluator.fail(given.at, "this program names no cluster");
    if (owner == "train")
      return evaluator.fail(given.at, "this train has no parameter `" + name + "`");
    static const StringRef owners[] = {"schedule", "model", "data", "mlp", "optimizer", "cluster", "lora", "mesh"};
    return evaluator.fail(given.at, "expected one of schedule, model, cluster, data, mlp, optimizer, lora, mesh before "
                                    "the dot, got `" +
                                        owner + "`" + didYouMean(owner, owners));
  }

  /// The chosen declarations that have parameters.
  SmallVector<Callee> callees() {
    SmallVector<Callee> all = {calleeOf(schedule), calleeOf(model)};
    if (cluster)
      all.push_back(calleeOf(cluster));
    return all;
  }

  /// A name without an owner may be anybody's: the one meant is shown with its owner.
  LogicalResult noParameter(const Override &given, Callee callee) {
    bool dotted = StringRef(given.name).contains('.');
    if (train && !train->parameters.empty() && !dotted)
      callee = {"train", train->name, train->parameters};
    SmallVector<StringRef> names, shown;
    auto add = [&](StringRef owner, StringRef name) {
      names.push_back(name);
      shown.push_back(owner == callee.kind ? name : source.intern((owner + "." + name).str()));
    };
    auto addAll = [&](const Callee &one) {
      for (const Parameter &parameter : one.parameters)
        add(one.kind, parameter.role.empty() ? parameter.name.text : parameter.role);
    };
    addAll(callee);
    if (!dotted) {
      for (const Callee &other : callees())
        if (other.kind != callee.kind)
          addAll(other);
      for (auto [option, its] : settings.all())
        for (const Setting &setting : its)
          add(option, setting.name);
    }
    StringRef nearest = nearestName(given.parameter, names);
    std::string meant;
    if (!nearest.empty())
      meant = ("; did you mean `" + shown[llvm::find(names, nearest) - names.begin()] + "`?").str();
    return evaluator.fail(
        given.at, callee.kind + " `" + callee.name.text + "` has no parameter `" + given.parameter + "`" + meant,
        callee.name.at, "`" + callee.name.text + "` is declared here");
  }

  void warnOfUnreadParameters() {
    if (!train)
      return;
    SmallVector<ChosenCall> calls = {{modelCall, calleeOf(model)}, {scheduleCall, calleeOf(schedule)}};
    if (replaced)
      calls.push_back({replacedCall, calleeOf(replaced)});
    if (cluster)
      calls.push_back({clusterCall, calleeOf(cluster)});
    pp::warnOfUnread(source, *train, calls, overrides);
  }

  //===-- data, optimizer, precision ----------------------------------------------------------------------------===//

  LogicalResult readSettings(StringRef option) {
    const Option *written = find(option);
    if (train && !written && option == "data" && isTrainWhole)
      return evaluator.fail(train->name.at, "train `" + train->name.text +
                                                "` has no `data`; it needs `data microbatch = "
                                                "<sequences>, sequence = <tokens>`");
    ArrayRef<Name> labels = written ? written->labels : ArrayRef<Name>();
    ArrayRef<Expr *> values = written ? written->values : ArrayRef<Expr *>();
    bool isOther = false, isRead = true; // the command line chose another optimizer
    if (written && option == "optimizer") {
      labels = written->value->labels;
      values = written->value->operands;
      isOther = written->value->name != settings.chosen();
    } else if (written && written->value) {
      return evaluator.fail(written->value->at, "expected `" + option + "` to be followed by `name = value`");
    }
    for (auto [i, label, value] : enumerate(labels, values)) {
      if (label.text.empty())
        return evaluator.fail(value->at, "the options of `" + option + "` need their names");
      for (const Name &first : labels.take_front(i))
        if (first.text == label.text)
          return evaluator.fail(label.at, "`" + label.text + "` is given twice", first.at, "first given here");
      if (isOther && !settings.has(option, label.text))
        continue;
      FailureOr<Value> number = evaluator.evaluate(value, trainScope);
      isRead &= succeeded(number) && succeeded(settings.check(evaluator, label.at, option, label.text)) &&
                succeeded(settings.set(evaluator, originOf(value, trainScope), option, label.text, *number));
    }
    for (const Override &given : overrides)
      if (given.owner == option)
        isRead &= succeeded(settings.set(evaluator, given.valueAt, option, given.parameter, given.value));
    return success(isRead);
  }

  /// `products fp8_row`: what linears of layers multiply, if not numbers of the precision; or that of -D in its place.
  LogicalResult readProducts() {
    static const StringRef known[] = {pipeline::kRowProducts, pipeline::kTileProducts, "none"};
    SMLoc at;
    if (const Option *written = find("products")) {
      const Expr *expr = written->value;
      if (!expr || expr->kind != Expr::Variable)
        return evaluator.fail(written->name.at, "expected a kind of products after `products`; " + thereAre(known));
      at = originOf(expr, trainScope);
      products = expr->name;
      if (Binding *given = trainScope.find(expr->name))
        products = given->value.asString() ? *given->value.asString() : "";
    }
    for (const Override &given : overrides)
      if (given.owner == "products") {
        at = given.valueAt;
        products = given.value.asString() ? *given.value.asString() : source.intern(given.value.text());
      }
    if (is_contained(known, products))
      return success();
    return evaluator.fail(at, "`" + products + "` is not a kind of products; " + thereAre(known) +
                                  didYouMean(products, known));
  }

  /// `precision bf16`, of weights and activations; `gradients bf16`, that of weights' gradients between tasks.
  LogicalResult readPrecision(StringRef option, StringRef &precision) {
    const Option *written = find(option);
    if (!written)
      return success();
    const Expr *expr = written->value;
    if (!expr || expr->kind != Expr::Variable)
      return evaluator.fail(written->name.at, "expected a precision after `" + option + "`: f32, bf16, f16 or f64");
    precision = expr->name;
    if (Binding *given = trainScope.find(expr->name))
      precision = given->value.asString() ? *given->value.asString() : "";
    static const StringRef known[] = {"f32", "bf16", "f16", "f64"};
    if (is_contained(known, precision))
      return success();
    return evaluator.fail(originOf(expr, trainScope), "`" + precision +
                                                          "` is not a precision; there are f32, bf16, f16 and f64" +
                                                          didYouMean(precision, known));
  }

  /// Sums are f32, of f64 f64; between tasks, and on the wire, a gradient may have the type of its weight.
  LogicalResult readPrecisions() {
    if (!options.precision.empty()) {
      precision = gradients = options.precision;
      return success();
    }
    if (failed(readPrecision("precision", precision)))
      return failure();
    StringRef sums = precision == "f64" ? "f64" : "f32";
    gradients = sums;
    if (failed(readPrecision("gradients", gradients)) || gradients == sums || gradients == precision)
      return success(gradients == sums || gradients == precision);
    return evaluator.fail(originOf(find("gradients")->value, trainScope),
                          "gradients of " + precision + " weights are " +
                              (precision == sums ? "" : precision + " or ") + sums + ", got " + gradients);
  }

  //===-- The module --------------------------------------------------------------------------------------------===//

  int64_t intOf(Scope &scope, StringRef name) {
    Binding *found = scope.find(source.intern(name));
    return found && found->value.asInt() ? *found->value.asInt() : 0;
  }

  /// What the schedule's parameters are bound to, by the names that -D has for them. A list is left out: it is as long
  /// as the program.
  mlir::DictionaryAttr parametersOfSchedule() {
    mlir::NamedAttrList bound;
    for (const Parameter &parameter : schedule->parameters) {
      StringRef name = parameter.role.empty() ? parameter.name.text : parameter.role;
      Binding *found = scheduleScope.find(parameter.name.text);
      if (!found || found->value.asList())
        continue;
      if (const int64_t *integer = found->value.asInt())
        bound.set(name, builder.getI64IntegerAttr(*integer));
      else if (const double *number = found->value.asNumber())
        bound.set(name, builder.getF64FloatAttr(*number));
      else if (const bool *truth = found->value.asBool())
        bound.set(name, builder.getBoolAttr(*truth));
      else if (const StringRef *string = found->value.asString())
        bound.set(name, builder.getStringAttr(*string));
    }
    return bound.getDictionary(module.getContext());
  }

  /// The number of the divisor, of a column, documents or groups, of all means of this report, or of all that are
  /// trained; 0 if they have others, and -1 if all are totals.
  int64_t divisorOf(std::optional<uint64_t> report) {
    llvm::SmallSetVector<int64_t, 2> divisors;
    module.walk([&](mlir::Operation *op) {
      if (auto mean = dyn_cast<nn::TokenMeanOp>(op); mean && mean.getReport() == report)
        divisors.insert(mean.getTotal() ? -1 : mean.getCounted() ? static_cast<int64_t>(mean.getDivisor()) : 0);
      else if (!report && isa<nn::CrossEntropyOp>(op))
        divisors.insert(0);
    });
    int64_t divisor = divisors.size() == 1 ? divisors.front() : 0;
    return divisor == -1 || divisor >= nn::kDivisorOfColumn ? divisor : 0;
  }

  mlir::DictionaryAttr trainAttr(int64_t layers) {
    auto string = [&](StringRef name, StringRef value) {
      return builder.getNamedAttr(name, builder.getStringAttr(value));
    };
    auto count = [&](StringRef name, int64_t value) {
      return builder.getNamedAttr(name, builder.getI64IntegerAttr(value));
    };
    SmallVector<mlir::NamedAttribute> made = {
        string("name", train ? train->name.text : schedule->name.text),
        string("model", model->name.text),
        string("function", hashOfParts(module)),
        string("schedule", schedule->name.text),
        builder.getNamedAttr("parameters", parametersOfSchedule()),
        count("layers", layers),
        count("batch", settings.data[0].value),
        count("sequence", settings.data[1].value),
        count("vocab", intOf(modelScope, "vocab")),
        string("precision", precision),
        string("gradients", gradients),
        builder.getNamedAttr("optimizer", settings.dictionaryOf("optimizer", precision, builder))};
    if (settings.data[2].value != 0) {
      made.push_back(builder.getNamedAttr("documents", builder.getUnitAttr()));
      module.walk([&](nn::EmbeddingOp embedding) {
        auto pad = static_cast<int64_t>(embedding.getPad());
        if (pad >= 0)
          made.push_back(count("pad", pad));
        return pad >= 0 ? mlir::WalkResult::interrupt() : mlir::WalkResult::advance();
      });
      if (settings.data[3].value > 1)
        made.push_back(count("group", int64_t(settings.data[3].value)));
    }
    if (!columns.empty())
      made.push_back(builder.getNamedAttr("columns", builder.getArrayAttr(columns)));
    if (int64_t divisor = divisorOf(std::nullopt); divisor > 0)
      made.push_back(count("divisor", divisor));
    if (ArrayRef<Name> reports = model->parts.back().reports; !reports.empty()) {
      auto names = llvm::map_to_vector(reports, [](const Name &name) { return name.text; });
      made.push_back(builder.getNamedAttr("reports", builder.getStrArrayAttr(names)));
      auto divisors = llvm::map_to_vector(llvm::seq(reports.size()), [&](size_t report) { return divisorOf(report); });
      made.push_back(builder.getNamedAttr("report_divisors", builder.getI64ArrayAttr(divisors)));
    }
    if (!options.folder.empty())
      made.append({string("folder", options.folder), string("config", options.config)});
    trained.addTo(made, builder);
    if (products != "none")
      made.push_back(string("products", products));
    if (settings.mlp[0].value > 1)
      made.push_back(builder.getNamedAttr("mlp", settings.dictionaryOf("mlp", precision, builder)));
    return builder.getDictionaryAttr(made);
  }

  /// The lengths of the slices, if they are given; the schedule itself only counts slices.
  FailureOr<SmallVector<int64_t>> countSlices() {
    SmallVector<int64_t> lengths;
    int64_t total = 0;
    for (const Parameter &parameter : schedule->parameters) {
      Binding *bound = parameter.role == "slices" ? scheduleScope.find(parameter.name.text) : nullptr;
      if (!bound || !bound->value.asList())
        continue;
      for (const Value &length : *bound->value.asList())
        total += lengths.emplace_back(*length.asInt());
      bool fits = !known.data || total == int64_t(settings.data[1].value);
      bound->isWrong = !fits;
      if (!fits)
        return evaluator.fail(parameter.name.at, "the slices " + bound->value.text() + " hold " + Twine(total) +
                                                     " tokens; a sequence has " +
                                                     Twine(int64_t(settings.data[1].value)));
      bound->value = Value(int64_t(lengths.size()));
    }
    return lengths;
  }

  /// Applies the `recompute` of `train`, or that of -D in its place.
  LogicalResult recompute(Elaborator &elaborator) {
    for (const Override &given : reverse(overrides))
      if (given.owner == "recompute") {
        const StringRef *word = given.value.asString();
        SmallVector<StringRef> names;
        (word ? *word : source.intern(given.value.text())).split(names, ',', -1, /*KeepEmpty=*/false);
        return elaborator.recompute(given.valueAt, names);
      }
    for (const RecomputeStatement *statement : train ? train->recomputes : ArrayRef<RecomputeStatement *>())
      if (failed(elaborator.recompute(statement, trainScope)))
        return failure();
    return success();
  }

  /// Where `option name = value` is given, or its value on the command line; and `model`, where it is the library's.
  std::vector<std::pair<std::string, mlir::Location>> placesOfClauses() {
    std::vector<std::pair<std::string, mlir::Location>> places;
    for (const Override &given : reverse(overrides))
      if (is_contained({"data", "mlp", "optimizer", "lora", "mesh", "freeze", "products"}, given.owner))
        places.emplace_back(given.owner == given.parameter ? given.owner.str()
                                                           : (given.owner + "." + given.parameter).str(),
                            source.location(given.valueAt));
    for (const Option &option : train ? train->options : ArrayRef<Option>()) {
      bool isCall = option.name.text == "optimizer" && option.value;
      for (auto [label, value] : zip(isCall ? option.value->labels : option.labels,
                                     isCall ? ArrayRef(option.value->operands) : option.values))
        if (option.parts.empty())
          places.emplace_back((option.name.text + "." + label.text).str(),
                              source.location(originOf(value, trainScope)));
      if (option.name.text == "products" && option.value)
        places.emplace_back("products", source.location(originOf(option.value, trainScope)));
      if (option.name.text == "freeze")
        places.emplace_back("freeze", source.location(option.texts.front().at));
    }
    if (model && modelCall && source.isOfLibrary(model->name.at))
      places.emplace_back("model", source.location(modelCall->at));
    return places;
  }

  /// Builds the model and runs the schedule, each if what it needs is known; makes the program if all is right.
  LogicalResult elaborate(const ModelOutline &outline, bool isRight) {
    if (!schedule)
      return failure();
    builder.setInsertionPointToEnd(module.getBody());
    FailureOr<SmallVector<int64_t>> lengths = countSlices();
    isRight &= succeeded(lengths);
    ScheduleSizes sizes = sizesOf();
    if (cluster && known.cluster && known.mesh && known.sizes && known.precision)
      isRight &=
          succeeded(checkRoom(evaluator, clusterOutline, sizes.ranks, mesh.devicesOfRank(), precision, clusterAt));
    isRight &= known.model && succeeded(build(outline));
    auto program = builder.create<pipeline::ProgramOp>(
        pipeline::withClauses(source.location(schedule->name.at), placesOfClauses()),
        train ? train->name.text : schedule->name.text, std::max<int64_t>(sizes.ranks, 1),
        std::max<int64_t>(sizes.microbatches, 1), std::max<int64_t>(sizes.slices, 0),
        isRight ? trainAttr(outline.layers) : mlir::DictionaryAttr());
    if (cluster)
      program.setClusterAttr(clusterOutline.attribute);
    if (isRight && !options.aloneMicrobatches)
      if (pipeline::MeshAttr made = mesh.attribute(sizes.ranks, source.context)) {
        program.setMeshAttr(made);
        isRight = succeeded(mesh.markParts(module));
      }
    if (succeeded(lengths) && !lengths->empty())
      program.setSliceLengths(*lengths);
    Elaborator elaborator(source, options.budget, outline, sizes, &program.getBody().emplaceBlock());
    elaborator.globals.bindings = evaluator.globals.bindings;
    elaborator.isIncomplete = evaluator.isIncomplete || schedule->isWrong || outline.isIncomplete;
    elaborator.knowsNodes = known.mesh && known.cluster;
    elaborator.attempt = calleeOf(model).find("layers") ? options.attempt : nullptr;
    isRight &= options.aloneMicrobatches || succeeded(recompute(elaborator));
    isRight &= succeeded(elaborator.elaborate(*schedule, scheduleScope));
    if (!isRight || failed(elaborator.emitPieces()) || failed(trained.check(module, model->name.text)))
      return failure();
    for (const Setting &setting : settings.optimizer)
      for (StringRef text : setting.texts)
        if (failed(trained.checkText(setting.at, setting.name, text)))
          return failure();
    return success();
  }

  /// The sizes of tensors do not depend on the precision, which may be unknown.
  LogicalResult build(const ModelOutline &outline) {
    if (model->isWrong || !known.data)
      return failure();
    Binding *vocab = modelScope.find(source.intern("vocab"));
    if (intOf(modelScope, "vocab") < 1)
      return evaluator.fail(vocab && vocab->given.isValid() ? vocab->given : model->name.at,
                            "model `" + model->name.text + "` needs a parameter `vocab` of at least 1");
    auto element = llvm::StringSwitch<mlir::FloatType>(precision)
                       .Case("f64", builder.getF64Type())
                       .Case("bf16", builder.getBF16Type())
                       .Case("f16", builder.getF16Type())
                       .Default(builder.getF32Type());
    BatchShape shape{int64_t(settings.data[0].value), int64_t(settings.data[1].value), element,
                     settings.data[2].value != 0, int64_t(settings.data[3].value)};
    if (shape.group > 1 && !shape.documents)
      return evaluator.fail(settings.data[3].at,
                            "`group` is of documents that stay together in a row: it needs `documents = true`");
    if (failed(buildModel(source, evaluator, *model, modelScope, shape, outline, builder, columns)))
      return failure();
    bool isElsewhere =
        options.makesCode && module.walk([](nn::OpaqueOp) { return mlir::WalkResult::interrupt(); }).wasInterrupted();
    if (!isElsewhere)
      return success();
    return evaluator.fail(modelCall ? modelCall->at : model->name.at,
                          "model `" + model->name.text +
                              "` says what its parts cost, not what they compute: no "
                              "executable can be made of it; a driver runs its --emit=json");
  }

  ScheduleSizes sizesOf() {
    ScheduleSizes sizes;
    for (const Parameter &parameter : schedule->parameters) {
      Binding *bound = scheduleScope.find(parameter.name.text);
      int64_t count = bound && !bound->isWrong && bound->value.asInt() ? *bound->value.asInt() : -1;
      if (parameter.role == "ranks")
        sizes.ranks = count;
      else if (parameter.role == "microbatches")
        sizes.microbatches = count;
      else if (parameter.role == "slices")
        sizes.slices = count;
    }
    sizes.ranksPerNode = evaluator.ranksPerNode;
    return sizes;
  }

  Source &source;
  const Declarations &declared;
  const FrontendOptions &options;
  CommandLine &commandLine;
  mlir::ModuleOp module;
  mlir::OpBuilder builder;
  ArgumentEvaluator evaluator;
  std::vector<Override> overrides;
  const Train *train = nullptr;
  bool isTrainRight = true, isTrainWhole = true; ///< its parameters have values; none of its options is unknown
  const Model *model = nullptr;
  ExpandedModel expanded;                                  // what `model` is where its layers have values
  const Schedule *schedule = nullptr, *replaced = nullptr; // `replaced`: what `train` names, where another is chosen
  const Cluster *cluster = nullptr;
  const Expr *modelCall = nullptr, *scheduleCall = nullptr, *replacedCall = nullptr, *clusterCall = nullptr;
  SMLoc clusterAt; ///< where it is chosen
  ClusterOutline clusterOutline;
  Scope trainScope{nullptr}, modelScope{nullptr}, scheduleScope{nullptr}, clusterScope{nullptr};
  Settings settings;
  TrainedWeights trained{source, evaluator};
  MeshClause mesh{evaluator};
  StringRef precision = "f32", gradients = "f32", products = "none";
  SmallVector<mlir::Attribute> columns; ///< of the dataset, that the model reads
};
} // namespace

LogicalResult pp::elaborateProgram(Source &source, const Declarations &declared, const FrontendOptions &options,
                                   CommandLine &commandLine, mlir::ModuleOp module) {
  return TrainBinder(source, declared, options, commandLine, module).run();
}
