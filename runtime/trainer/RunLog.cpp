// Writes what each step did: to the terminal, as a JSON line, and for TensorBoard.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/trainer/RunLog.h"
#include "runtime/trainer/LogFields.h"
#include "runtime/trainer/Outputs.h"
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

namespace pp {
namespace {

constexpr size_t recentSteps = 20;
constexpr double largestExponent = 700; ///< e to it is a double

/// A field whose name is of the log; another one does not compile.
struct Field {
  consteval Field(const char *name) : name(isLogField(name) ? name : throw "not in LogFields.h") {}
  const char *name;
};

/// `, "loss": `
std::string key(Field field) { return text(", \"", field.name, "\": "); }

/// A number as JSON has it: as many digits as bring it back exactly. It has no infinity and no NaN.
std::string exact(double value) {
  char out[32];
  if (!std::isfinite(value))
    return "null";
  snprintf(out, sizeof out, "%.17g", value);
  return out;
}

std::string exactOrNull(bool known, double value) { return known ? exact(value) : "null"; }

/// The rates of groups of weights, by the text in their names.
std::string groupRates(const OptimizerSpec &optimizer, double lr) {
  std::string rates;
  for (const auto &[name, factor] : optimizer.lrScale)
    rates += text(rates.empty() ? "" : ", ", nlohmann::json(name).dump(), ": ", exact(lr * factor));
  return rates.empty() ? "" : text(key("lr_groups"), "{", rates, "}");
}

double perplexity(double loss) { return std::exp(std::min(loss, largestExponent)); }

using Tagged = std::vector<std::pair<std::string, double>>;

/// Adds the program's reports to what TensorBoard shows.
void addReports(Tagged &values, const std::string &folder, const Program &whole, const std::vector<double> &reports) {
  for (size_t i = 0; i < reports.size(); ++i)
    values.push_back({folder + whole.reports[i], reports[i]});
}

/// Adds what evaluations say.
Tagged withEvals(Tagged values, const Program &whole, const std::vector<EvalSummary> &evals) {
  for (const EvalSummary &its : evals) {
    const std::string folder = its.name.empty() ? "eval/" : text("eval/", its.name, "/");
    values.push_back({folder + "loss", its.loss});
    addReports(values, folder, whole, its.reports);
  }
  return values;
}

/// The program's reports as words of a line that is printed.
std::string printedReports(const Program &whole, const std::vector<double> &reports) {
  std::string words;
  for (size_t i = 0; i < reports.size(); ++i) {
    char number[32];
    snprintf(number, sizeof number, " %.5f", reports[i]);
    words += text("  ", whole.reports[i], number);
  }
  return words;
}

/// The same as fields of a line of JSON, each behind `key`.
std::string fieldsOfReports(const std::string &key, const Program &whole, const std::vector<double> &reports) {
  std::string fields;
  for (size_t i = 0; i < reports.size(); ++i)
    fields += text(key, whole.reports[i], "\": ", exact(reports[i]));
  return fields;
}

/// `42 s`, `12 min`, `3.5 h`: of a time that is only guessed.
std::string roughly(double seconds) {
  char out[32];
  if (seconds < 100)
    snprintf(out, sizeof out, "%.0f s", seconds);
  else if (seconds < 6000)
    snprintf(out, sizeof out, "%.0f min", seconds / 60);
  else
    snprintf(out, sizeof out, "%.1f h", seconds / 3600);
  return out;
}

} // namespace

RunLog::~RunLog() {
  if (log)
    fclose(log);
}

Status RunLog::open() {
  if (!options.log.empty())
    PP_TRY(openLog(options.log, !options.resume.empty(), log));
  return options.tensorboard.empty() ? Status() : events.open(options.tensorboard);
}

double RunLog::share(double seconds) const {
  return options.peakFlops ? whole.flopsPerStep / (seconds * double(whole.devices()) * *options.peakFlops) : -1;
}

Status RunLog::say(int64_t step, int64_t steps, int64_t last, const StepSummary &summary) {
  if (recent.size() == recentSteps || (!recent.empty() && step == second)) // the first step touches every page
    recent.pop_front();
  recent.push_back(summary.seconds);
  second = second ? second : step + 1;
  std::vector<double> sorted(recent.begin(), recent.end());
  std::nth_element(sorted.begin(), sorted.begin() + sorted.size() / 2, sorted.end());
  double left = sorted[sorted.size() / 2] * double(last - step);
  print(step, steps, left, summary);
  if (log)
    PP_TRY(write(step, lineOf(left, summary), summary.evals));
  if (!events.isOpen())
    return {};
  Tagged values = {{"train/loss", summary.loss}, {"train/lr", summary.lr}};
  if (summary.hasNorm)
    values.push_back({"train/grad_norm", summary.norm});
  if (summary.hasFurther)
    values.push_back({"train/mtp", summary.further});
  if (summary.hasZLoss)
    values.push_back({"train/z_loss", summary.zLoss});
  addReports(values, "train/", whole, summary.reports);
  if (summary.hasExperts)
    values.insert(values.end(), {{"train/balance", summary.balance}, {"train/z", summary.z}});
  values.push_back({"train/tokens_per_s", whole.tokensPerStep / summary.seconds});
  return events.add(step, withEvals(values, whole, summary.evals));
}

Status RunLog::sayFirst(int64_t steps, const std::vector<EvalSummary> &evals) {
  printEvals(steps, evals);
  if (log)
    PP_TRY(write(0, "", evals));
  return events.isOpen() ? events.add(0, withEvals({}, whole, evals)) : Status();
}

void RunLog::print(int64_t step, int64_t steps, double left, const StepSummary &summary) const {
  char norm[32] = "-", peak[32] = "", further[32] = "", zLoss[32] = "";
  if (summary.hasNorm)
    snprintf(norm, sizeof norm, summary.skipped ? "overflow" : "%.4f", summary.norm);
  if (summary.hasFurther)
    snprintf(further, sizeof further, "  mtp %.5f", summary.further);
  if (summary.hasZLoss)
    snprintf(zLoss, sizeof zLoss, "  z loss %.5f", summary.zLoss);
  std::string routed = printedReports(whole, summary.reports);
  if (summary.hasExperts) {
    char numbers[64];
    snprintf(numbers, sizeof numbers, "  balance %.5f  z %.5f", summary.balance, summary.z);
    routed += text(numbers, "  rows ", summary.fewestRows, "..", summary.mostRows);
    if (summary.dropped > 0) {
      snprintf(numbers, sizeof numbers, "  dropped %.2f %%", 100 * summary.dropped);
      routed += numbers;
    }
  }
  if (options.peakFlops)
    snprintf(peak, sizeof peak, "  %.1f %% of peak", 100 * share(summary.seconds));
  std::string scale = whole.scalesLoss() ? text("  scale ", summary.lossScale) : "";
  if (summary.skipped)
    scale += scale.empty() ? "  skipped" : ", skipped";
  constexpr double worthSaying = 10;
  std::string rest = left >= worthSaying ? "  " + roughly(left) + " left" : "";
  printf("step %*lld/%lld  loss %.5f%s%s%s  grad norm %s  lr %.3e%s  %.0f tokens/s  %.2f GFLOP/s%s%s\n",
         int(std::to_string(steps).size()), static_cast<long long>(step), static_cast<long long>(steps), summary.loss,
         further, zLoss, routed.c_str(), norm, summary.lr, scale.c_str(), whole.tokensPerStep / summary.seconds,
         whole.flopsPerStep / summary.seconds * 1e-9, peak, rest.c_str());
  printEvals(steps, summary.evals);
}

void RunLog::printEvals(int64_t steps, const std::vector<EvalSummary> &evals) const {
  for (const EvalSummary &its : evals)
    printf("eval %-*s  loss %.5f  ppl %.3f%s  %lld targets\n", 2 * int(std::to_string(steps).size()) + 1,
           its.name.c_str(), its.loss, perplexity(its.loss), printedReports(whole, its.reports).c_str(),
           static_cast<long long>(its.tokens));
  fflush(stdout);
}

/// The fields of a step in its line of JSON, apart from its number and its evaluations.
std::string RunLog::lineOf(double left, const StepSummary &summary) const {
  return text(key("loss"), exact(summary.loss), key("ppl"), exact(perplexity(summary.loss)),
              summary.hasFurther ? text(key("mtp"), exact(summary.further)) : "",
              summary.hasZLoss ? text(key("z_loss"), exact(summary.zLoss)) : "",
              fieldsOfReports(", \"", whole, summary.reports),
              summary.hasExperts ? text(key("balance"), exact(summary.balance), key("z"), exact(summary.z), key("rows"),
                                        "{\"min\": ", summary.fewestRows, ", \"mean\": ", exact(summary.meanRows),
                                        ", \"max\": ", summary.mostRows, "}", key("dropped"), exact(summary.dropped))
                                 : "",
              key("grad_norm"), exactOrNull(summary.hasNorm, summary.norm), key("lr"), exact(summary.lr),
              groupRates(whole.optimizer, summary.lr),
              whole.scalesLoss() ? text(key("loss_scale"), exact(summary.lossScale)) : "",
              summary.hasNorm ? text(key("skipped"), summary.skipped ? "true" : "false") : "", key("tokens"),
              summary.tokens, summary.hasWeights ? text(key("weight"), exact(summary.weight)) : "", key("tokens_per_s"),
              exact(whole.tokensPerStep / summary.seconds), key("flop_per_s"),
              exact(whole.flopsPerStep / summary.seconds), key("mfu"),
              exactOrNull(options.peakFlops.has_value(), share(summary.seconds)), key("seconds"),
              exact(summary.seconds), key("eta_s"), exact(left));
}

Status RunLog::write(int64_t step, const std::string &fields, const std::vector<EvalSummary> &evals) {
  std::string line = text("{\"step\": ", step, fields);
  for (const EvalSummary &its : evals) {
    const std::string begin = text(", \"eval_", its.name, its.name.empty() ? "" : "_");
    line += text(begin, "loss\": ", exact(its.loss), begin, "ppl\": ", exact(perplexity(its.loss)), begin,
                 "tokens\": ", its.tokens, its.hasWeights ? text(begin, "weight\": ", exact(its.weight)) : "",
                 fieldsOfReports(begin, whole, its.reports));
  }
  line += "}\n";
  if (fwrite(line.data(), 1, line.size(), log) != line.size() || fflush(log) != 0)
    return refused("cannot write `", options.log, "` of --log: ", strerror(errno));
  return {};
}

} // namespace pp
