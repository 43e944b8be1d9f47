// Whole runs of programs made by hand, under mpirun and in one process: gradients, checkpoints, files and faults.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/files/SafeTensors.h"
#include "runtime/trainer/Checkpoint.h"
#include "runtime/trainer/Rate.h"
#include "runtime/transport/MpiCollective.h"
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <unistd.h>

using namespace pp;
namespace fs = std::filesystem;

namespace {

struct Ran {
  int code = 0;
  std::string out, error;
  double seconds = 0;

  /// The lines that the program itself wrote as errors.
  [[nodiscard]] std::vector<std::string> errors() const {
    std::vector<std::string> lines;
    std::istringstream stream(error);
    for (std::string line; std::getline(stream, line);)
      if (line.starts_with("pp: error: "))
        lines.push_back(line.substr(11));
    return lines;
  }
};

std::string read(const fs::path &path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class RuntimeRuns : public testing::Test {
protected:
  RuntimeRuns() {
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    folder = fs::temp_directory_path() /
             text("pp-runs-", getpid(), "-", testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder);
    std::ofstream data(folder / "text");
    for (int i = 0; i < 300; ++i)
      data << "the quick brown fox jumps over the lazy dog " << i * i << "\n";
  }
  ~RuntimeRuns() override { fs::remove_all(folder); }

  Ran shell(const std::string &command) {
    auto start = std::chrono::steady_clock::now();
    int status = system(text("cd ", folder.string(), " && timeout 60 ", command, " > out 2> error").c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(folder / "out"), read(folder / "error"),
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
  }
  static std::string program(int ranks, const std::string &type) {
    return text(PP_BYHAND_DIR "/pp-byhand-", ranks, "-", type, " ");
  }
  /// Runs the ranks as threads of one process, or with `ranks` processes.
  Ran threads(const std::string &arguments, const std::string &type = "f32", int ranks = 2) {
    return shell(program(ranks, type) + "--in-process " + arguments);
  }
  Ran mpi(const std::string &arguments, const std::string &type = "f32", int ranks = 2, int started = 0) {
    return shell(text("mpirun --oversubscribe -n ", started ? started : ranks, " ", program(ranks, type), arguments));
  }
  /// Fails the test unless the run printed exactly this error and ended with a code.
  static void expectError(const Ran &ran, const std::string &expected) {
    EXPECT_NE(ran.code, 0);
    ASSERT_EQ(ran.errors().size(), 1u) << ran.error;
    EXPECT_EQ(ran.errors()[0], expected);
  }
  std::vector<nlohmann::json> logOf(const std::string &name) {
    std::vector<nlohmann::json> lines;
    std::ifstream file(folder / name);
    for (std::string line; std::getline(file, line);)
      lines.push_back(nlohmann::json::parse(line));
    return lines;
  }
  /// The largest difference of two files' tensors over the largest value.
  double distance(const std::string &a, const std::string &b) {
    SafeTensors left, right;
    EXPECT_TRUE(left.open(folder / a).ok() && right.open(folder / b).ok());
    EXPECT_EQ(left.tensors().size(), right.tensors().size());
    double difference = 0, largest = 0;
    for (const auto &[name, tensor] : left.tensors()) {
      const FileTensor &other = right.tensors().at(name);
      EXPECT_EQ(tensor.shape, other.shape);
      for (int64_t i = 0; i < tensor.elements(); ++i) {
        double x = SafeTensors::readerOf(tensor.type)(left.data(tensor), i);
        double y = SafeTensors::readerOf(other.type)(right.data(other), i);
        difference = std::max(difference, std::abs(x - y));
        largest = std::max(largest, std::abs(x));
      }
    }
    return difference / largest;
  }

  fs::path folder;
};

TEST_F(RuntimeRuns, TwoRanksTrainAsOne) {
  for (std::string type : {"f32", "f64"}) {
    const std::string arguments = "--data text --steps 20 --grads ";
    double bound = type == "f64" ? 1e-11 : 1e-5;
    ASSERT_EQ(threads(arguments + "one --log one.log", type, 1).code, 0);
    Ran runs[] = {threads(arguments + "t --log t.log", type),
                  threads(arguments + "b --log b.log --sends=buffered", type), mpi(arguments + "m --log m.log", type),
                  mpi(arguments + "r --log r.log --sends rendezvous", type)};
    for (const Ran &ran : runs)
      ASSERT_EQ(ran.code, 0) << ran.error;
    for (std::string name : {"t", "b", "m", "r"}) {
      EXPECT_LE(distance("one", name), bound) << name;
      auto one = logOf("one.log"), other = logOf(name + ".log");
      ASSERT_EQ(one.size(), 20u);
      ASSERT_EQ(other.size(), 20u);
      for (size_t i = 0; i < 20; ++i)
        EXPECT_NEAR(one[i]["loss"].get<double>(), other[i]["loss"].get<double>(), 1e-4);
    }
  }
}

// Random orders of messages and sums between processes, posted in one global order and waited for soon or late.
TEST_F(RuntimeRuns, ProcessesDeliverEveryMessage) {
  for (std::string arguments :
       {"1 60 8 0 plain", "2 60 8 3 plain", "3 60 8 0 rendezvous", "4 60 8 3 rendezvous",
        // No more than 40 words or bytes counted at once: longer ones are one element of a type.
        "5 60 8 3 plain 40"}) {
    Ran ran = shell("mpirun --oversubscribe -n 3 " PP_BYHAND_DIR "/pp-message-pattern " + arguments);
    EXPECT_EQ(ran.code, 0) << ran.error;
  }
}

// Channels between two ranks are apart, whatever the order in which the other rank receives.
TEST_F(RuntimeRuns, ProcessesKeepChannelsApart) {
  for (std::string sends : {"plain", "rendezvous"}) {
    Ran ran = shell("mpirun --oversubscribe -n 2 " PP_BYHAND_DIR "/pp-message-pattern channels " + sends);
    EXPECT_EQ(ran.code, 0) << ran.error;
  }
}

// Sums of the devices of a rank, in one segment and in several that share a short scratch.
TEST_F(RuntimeRuns, ProcessesSumInSegments) {
  for (std::string processes : {"2", "3", "5"})
    for (std::string arguments : {"plain 67108864", "rendezvous 4096", "plain 1000"}) {
      Ran ran = shell("mpirun --oversubscribe -n " + processes + " " PP_BYHAND_DIR "/pp-message-pattern sums " +
                      arguments + " 1 16 97 1000 30011 4096");
      EXPECT_EQ(ran.code, 0) << ran.error;
    }
}

// A byte more than an int of MPI's counts. (2 GiB in each of two processes.)
TEST_F(RuntimeRuns, MessagesOfTwoGibibytesArrive) {
  Ran ran = shell("mpirun --oversubscribe -n 2 " PP_BYHAND_DIR "/pp-message-pattern long 1000 2147483649");
  EXPECT_EQ(ran.code, 0) << ran.error;
}

// Shards are cut in elements that an int counts, too, and is given places in: up to 4096 bytes each.
TEST_F(RuntimeRuns, ShardsAreCountedInLongerElementsWhereWordsAreTooMany) {
  const int64_t words = int64_t(INT_MAX) * 8;
  EXPECT_EQ(mpiUnit({0, 64, 128}, 128), 8);
  EXPECT_EQ(mpiUnit({0, 4, 12}, 12), 1);
  EXPECT_EQ(mpiUnit({0, words / 64 * 32, words / 64 * 64}, 0), 8);
  EXPECT_EQ(mpiUnit({0, 64, words / 64 * 64 + 64}, 0), 64); // a word too many
  EXPECT_EQ(mpiUnit({0, 8}, words + 8), 0);                 // the members' shards together, in words only
  EXPECT_EQ(mpiUnit({0, 1, INT_MAX}, 0), 1);
  EXPECT_EQ(mpiUnit({0, 1, int64_t(INT_MAX) + 1}, 0), 0);
  EXPECT_EQ(mpiUnit({0, 4096, int64_t(INT_MAX) * 4096}, 0), 4096);
  EXPECT_EQ(mpiUnit({0, 4096, (int64_t(INT_MAX) + 1) * 4096}, 0), 0);
}

TEST_F(RuntimeRuns, TheLossFalls) {
  ASSERT_EQ(threads("--data text --steps 400 --log log").code, 0);
  auto log = logOf("log");
  EXPECT_GT(log.front()["loss"], 4.5);
  EXPECT_LT(log.back()["loss"], 2.5);
  EXPECT_GT(log.back()["grad_norm"], 0);
  for (const char *key : {"tokens_per_s", "flop_per_s", "seconds"})
    EXPECT_GT(log.back()[key], 0) << key;
}

// With lr 0 a run saves its first weights: those in f32 are those in f64 rounded, for any number of ranks.
TEST_F(RuntimeRuns, EveryPrecisionStartsFromTheSameWeights) {
  for (std::string type : {"f32", "f64", "bf16", "f16"})
    ASSERT_EQ(threads("--data text --steps 1 --lr 0 --save " + type, type, type == "f32" ? 1 : 2).code, 0);
  EXPECT_LE(distance("f64/model.safetensors", "f32/model.safetensors"), 0x1p-24);
  EXPECT_LE(distance("f64/model.safetensors", "bf16/model.safetensors"), 0x1p-8);
  EXPECT_GT(distance("f64/model.safetensors", "bf16/model.safetensors"), 0x1p-12);
  EXPECT_LE(distance("f64/model.safetensors", "f16/model.safetensors"), 0x1p-11);
  EXPECT_GT(distance("f64/model.safetensors", "f16/model.safetensors"), 0x1p-15);
  ASSERT_EQ(threads("--data text --steps 1 --lr 0 --seed 2 --save other").code, 0);
  EXPECT_GT(distance("f32/model.safetensors", "other/model.safetensors"), 0.1);
}

TEST_F(RuntimeRuns, AResumedRunIsTheSameRun) {
  for (std::string type : {"f32", "bf16", "f16"}) {
    ASSERT_EQ(mpi("--data text --steps 40 --lr 0.02 --log whole.log --save whole", type).code, 0);
    ASSERT_EQ(mpi("--data text --steps 40 --lr 0.02 --stop-at 20 --save half", type).code, 0);
    Ran ran = mpi("--data text --resume half --log rest.log --save rest", type);
    ASSERT_EQ(ran.code, 0) << ran.error;
    for (const char *file : {"model.safetensors", "optimizer.safetensors", "state.json"})
      EXPECT_EQ(read(folder / "whole" / file), read(folder / "rest" / file)) << file;
    auto whole = logOf("whole.log"), rest = logOf("rest.log");
    ASSERT_EQ(rest.size(), 20u);
    for (size_t i = 0; i < 20; ++i)
      EXPECT_EQ(whole[20 + i]["loss"], rest[i]["loss"]);
    // Another number of ranks, the other transport: the same model, to rounding.
    ran = threads("--data text --resume half --save alone", type, 1);
    ASSERT_EQ(ran.code, 0) << ran.error;
    EXPECT_LE(distance("whole/model.safetensors", "alone/model.safetensors"), 1e-5);
    fs::remove(folder / "rest.log");
  }
}

TEST_F(RuntimeRuns, CheckpointsEveryFewStepsReplaceEachOther) {
  ASSERT_EQ(threads("--data text --steps 7 --save ck/ --save-every 3").code, 0);
  EXPECT_EQ(nlohmann::json::parse(read(folder / "ck/state.json"))["step"], 7);
  EXPECT_FALSE(fs::exists(folder / "ck.tmp"));
  // A run that is killed keeps the last whole one; the leftovers of a save do not disturb the next.
  fs::create_directory(folder / "ck.tmp");
  fs::copy(folder / "ck/state.json", folder / "ck.tmp/state.json"); // the first file that is written
  std::ofstream(folder / "ck.tmp/model.safetensors.tmp") << "half";
  Ran ran = shell("env PP_TEST_FAULT=kill:0:12 " + program(2, "f32") +
                  "--in-process --data text --resume ck --steps 20 --save ck --save-every 4 --save-sync");
  EXPECT_NE(ran.code, 0);
  EXPECT_EQ(nlohmann::json::parse(read(folder / "ck/state.json"))["step"], 8);
  EXPECT_EQ(threads("--data text --resume ck --steps 20 --save ck").code, 0);
}

TEST_F(RuntimeRuns, OlderCheckpointsStayBeside) {
  auto steps = [&] {
    std::map<std::string, int64_t> found;
    for (const auto &entry : fs::directory_iterator(folder))
      if (std::string name = entry.path().filename(); name.starts_with("ck"))
        found[name] = nlohmann::json::parse(read(entry.path() / "state.json"))["step"];
    return found;
  };
  using Steps = std::map<std::string, int64_t>;
  ASSERT_EQ(threads("--data text --steps 11 --save ck --save-every 2 --keep 3").code, 0);
  EXPECT_EQ(steps(), (Steps{{"ck", 11}, {"ck.step-10", 10}, {"ck.step-8", 8}}));
  // Folders that are not ours, or were changed, do not count and stay.
  fs::create_directory(folder / "ck.step-9");
  std::ofstream(folder / "ck.step-9/thesis.tex") << "mine";
  std::ofstream(folder / "ck.step-8/thesis.tex") << "mine";
  ASSERT_EQ(threads("--data text --resume ck --steps 13 --save ck --keep 2").code, 0);
  EXPECT_EQ(read(folder / "ck.step-9/thesis.tex") + read(folder / "ck.step-8/thesis.tex"), "minemine");
  fs::remove_all(folder / "ck.step-9");
  EXPECT_EQ(steps(), (Steps{{"ck", 13}, {"ck.step-11", 11}, {"ck.step-8", 8}}));
  fs::remove_all(folder / "ck.step-8");
  // A run that goes back to an older one gives up the newer ones. The one that it reads is there until its end.
  ASSERT_EQ(mpi("--data text --resume ck.step-11 --steps 14 --save ck --save-every 1 --keep 2").code, 0);
  EXPECT_EQ(steps(), (Steps{{"ck", 14}, {"ck.step-13", 13}}));
  // Killed behind the exchange of the two folders, the older one is still `ck.tmp`.
  fs::rename(folder / "ck.step-13", folder / "ck.tmp");
  ASSERT_EQ(threads("--data text --resume ck --steps 15 --save ck --keep 3").code, 0);
  EXPECT_EQ(steps(), (Steps{{"ck", 15}, {"ck.step-14", 14}, {"ck.step-13", 13}}));
  expectError(threads("--data text --load ck.step-13 --save ck --keep 2"),
              "`--save ck` would replace `ck.step-13`, whose weights are read");
}

TEST_F(RuntimeRuns, ADamagedCheckpointIsNamedAndTheOneBeforeTaken) {
  ASSERT_EQ(threads("--data text --steps 8 --save whole").code, 0);
  ASSERT_EQ(threads("--data text --steps 8 --stop-at 6 --save ck --save-every 4 --keep 2").code, 0);
  const fs::path older = folder / "ck.step-4", aside = folder / "aside";
  for (std::string file : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    const std::string good = read(folder / "ck" / file);
    for (size_t at : {size_t(20), good.size() / 2, good.size() - 4}) {
      std::string bad = good;
      bad[at] ^= 4;
      std::ofstream(folder / "ck" / file) << bad;
      fs::rename(older, aside);
      Ran alone = threads("--data text --resume ck");
      ASSERT_EQ(alone.errors().size(), 1u) << alone.error;
      EXPECT_TRUE(alone.errors()[0].starts_with("`ck/" + file)) << alone.errors()[0];
      fs::rename(aside, older);
      Ran ran = at == 20 ? mpi("--data text --resume ck --save rest") : threads("--data text --resume ck --save rest");
      EXPECT_EQ(ran.code, 0) << ran.error;
      EXPECT_NE(ran.error.find("pp: warning: `ck/" + file), std::string::npos) << ran.error;
      EXPECT_NE(ran.error.find("; the run goes on from `ck.step-4`"), std::string::npos) << ran.error;
      EXPECT_EQ(read(folder / "whole/model.safetensors"), read(folder / "rest/model.safetensors"));
    }
    std::ofstream(folder / "ck" / file) << good;
  }
  const std::string state = read(folder / "ck/state.json");
  ASSERT_TRUE(checkWhole(folder / "ck").ok());
  for (size_t at = 0; at < state.size(); ++at) {
    std::string bad = state;
    bad[at] ^= char(1 << at % 7);
    std::ofstream(folder / "ck/state.json") << bad;
    EXPECT_FALSE(checkWhole(folder / "ck").ok()) << "byte " << at << ": " << bad;
  }
  std::ofstream(folder / "ck/state.json") << state;
  fs::remove(folder / "ck/optimizer.safetensors");
  EXPECT_EQ(threads("--data text --resume ck --save ck --keep 2").code, 0);
  EXPECT_FALSE(fs::exists(folder / "ck.step-6")) << "a damaged checkpoint is not kept";
  EXPECT_EQ(read(folder / "whole/state.json"), read(folder / "ck/state.json"));
  fs::remove_all(folder / "ck"); // as on a file system that cannot exchange folders
  EXPECT_EQ(threads("--data text --resume ck --save again").code, 0);
}

TEST_F(RuntimeRuns, WeightsOfAFileAreLoaded) {
  ASSERT_EQ(threads("--data text --steps 5 --save a").code, 0);
  Ran ran = threads("--data text --steps 1 --lr 0 --load a/model.safetensors --save b", "f64", 1);
  ASSERT_EQ(ran.code, 0) << ran.error;
  EXPECT_EQ(distance("a/model.safetensors", "b/model.safetensors"), 0);

  // Other prefixes, another type, a tensor too many.
  SafeTensorsWriter writer;
  std::vector<float> table(2048, 0.5f);
  std::vector<uint16_t> head(2048, 0x3c00); // 1 in F16
  ASSERT_TRUE(writer
                  .open(folder / "c",
                        {{"embed_tokens.weight", "F32", {128, 16}},
                         {"lm_head.weight", "F16", {128, 16}},
                         {"rotary.inv_freq", "F32", {1}}},
                        {})
                  .ok());
  ASSERT_TRUE(writer.write(table.data(), 4 * 2048).ok() && writer.write(head.data(), 2 * 2048).ok() &&
              writer.write(table.data(), 4).ok() && writer.finish().ok());
  expectError(mpi("--data text --steps 1 --lr 0 --load c --save d"),
              "`c` has `rotary.inv_freq`, which this model does not use; `--allow-unused NAME,..` says that nothing is "
              "wrong; in a NAME `*` is any text");
  EXPECT_FALSE(fs::exists(folder / "d"));
  ran = mpi("--data text --steps 1 --lr 0 --load c --save d --allow-unused rotary.inv_freq");
  ASSERT_EQ(ran.code, 0) << ran.error;
  SafeTensors file;
  ASSERT_TRUE(file.open(folder / "d/model.safetensors").ok());
  EXPECT_EQ(SafeTensors::readerOf("F32")(file.data(file.tensors().at("lm_head.weight")), 77), 1);
  EXPECT_EQ(SafeTensors::readerOf("F32")(file.data(file.tensors().at("model.embed_tokens.weight")), 77), 0.5);
}

TEST_F(RuntimeRuns, WrongWeightFilesAreRefused) {
  auto make = [&](std::vector<FileTensor> tensors) {
    SafeTensorsWriter writer;
    std::vector<char> zeros(1 << 16);
    ASSERT_TRUE(writer.open(folder / "w", tensors, {}).ok());
    for (const FileTensor &tensor : tensors)
      ASSERT_TRUE(writer.write(zeros.data(), tensor.elements() * (tensor.type == "F32" ? 4 : 8)).ok());
    ASSERT_TRUE(writer.finish().ok());
  };
  make({{"lm_head.weight", "F32", {128, 16}}, {"model.embed_token.weight", "F32", {128, 16}}});
  expectError(mpi("--data text --load w"), "`w` lacks `model.embed_tokens.weight` of this model; it has 2 tensors, the "
                                           "nearest name is `model.embed_token.weight`");
  make({{"lm_head.weight", "F32", {16, 128}}, {"embed_tokens.weight", "F32", {128, 16}}});
  expectError(mpi("--data text --load w"),
              "rank 1: `w`: `lm_head.weight` has shape [16, 128], this model expects [128, 16]");
  make({{"lm_head.weight", "I64", {128, 16}}, {"embed_tokens.weight", "F32", {128, 16}}});
  expectError(threads("--data text --load w"),
              "rank 1: `w`: `lm_head.weight` has type I64, expected F32, BF16, F16 or F64");
}

TEST_F(RuntimeRuns, WrongCheckpointsAreRefused) {
  ASSERT_EQ(threads("--data text --steps 4 --save ck").code, 0);
  expectError(threads("--data text --resume ck", "f64"),
              "cannot resume from `ck`: it was made with precision \"f32\", this program has \"f64\"");
  expectError(threads("--data text --resume ck"), "nothing to do: the run in `ck` has already done 4 of 4 steps");
  expectError(threads("--data text --resume ck --steps 9 --seed 4"),
              "`--seed 4` differs from the resumed run's 1; leave it out");
  expectError(threads("--data text --resume none --steps 9"),
              "cannot resume from `none`: cannot read `none/state.json`: No such file or directory");
  std::string state = read(folder / "ck/state.json");
  state = state.substr(0, state.find(",\n  \"crc32\"")) + "}"; // as versions without checksums wrote it
  std::ofstream(folder / "ck/state.json") << std::string(state).replace(state.find("\"step\": 4"), 9, "\"step\": 3");
  expectError(threads("--data text --resume ck --steps 9"),
              "`ck/model.safetensors` does not belong to step 3 of `ck/state.json`");
  fs::resize_file(folder / "ck/state.json", 40);
  Ran ran = threads("--data text --resume ck --steps 9");
  ASSERT_EQ(ran.errors().size(), 1u);
  EXPECT_TRUE(ran.errors()[0].starts_with("`ck/state.json:")) << ran.errors()[0];
  EXPECT_NE(ran.errors()[0].find("` is corrupt: it is no JSON: "), std::string::npos) << ran.errors()[0];
}

TEST_F(RuntimeRuns, WhatCannotBeWrittenIsFoundBeforeTheFirstStep) {
  std::ofstream(folder / "file") << "mine";
  fs::create_directory(folder / "full");
  std::ofstream(folder / "full/thesis.tex") << "mine";
  Ran ran = mpi("--data text --save none/ck");
  expectError(ran, "cannot save to `none/ck`: cannot make `none/ck.lock`: No such file or directory");
  EXPECT_EQ(ran.out, "");
  expectError(threads("--data text --save file"), "cannot save to `file`: it is not a folder");
  expectError(threads("--data text --save full"), "cannot save to `full`: a checkpoint replaces its whole folder, and "
                                                  "no run of pp made this one, which has `thesis.tex`; name a new one");
  expectError(threads("--data text --log none/x"), "cannot write `none/x` of --log: No such file or directory");
  expectError(threads("--data text --grads none/x"), "cannot write `none/x` of --grads: No such file or directory");
  expectError(threads("--data text --trace full"),
              "cannot write `full` of --trace: it is a folder, expected a file or nothing");
  EXPECT_EQ(read(folder / "full/thesis.tex"), "mine");
}

TEST_F(RuntimeRuns, WrongCommandLinesSayItOnce) {
  expectError(mpi("--step 4"), "unknown option `--step`; did you mean `--steps`?");
  expectError(mpi(""), "no data to train on: give `--data FILE` (a text, or a token file), or `--data random`");
  expectError(mpi("--data text", "f32", 2, 3),
              "this program has 2 ranks; mpirun started 3: run `mpirun -n 2 <program>`, or "
              "the program alone with --in-process");
  expectError(shell(program(2, "f32") + "--data text"),
              "this program has 2 ranks; it was started without mpirun: run "
              "`mpirun -n 2 <program>`, or the program alone with --in-process");
  std::ofstream(folder / "text", std::ios::app) << "\u00c8 and more";
  size_t position = fs::file_size(folder / "text") - 11;
  expectError(mpi("--data text"),
              text("token ", position, " of `text` is 195; the model's vocabulary has 128, 0 to 127"));
}

TEST_F(RuntimeRuns, InfoAndHelpNeedNoRanks) {
  Ran info = shell(program(2, "f32") + "--info");
  EXPECT_EQ(info.code, 0);
  EXPECT_NE(info.out.find("schedule    byhand on 2 ranks"), std::string::npos) << info.out;
  Ran help = mpi("--help");
  EXPECT_EQ(help.code, 0);
  size_t first = help.out.find("--save-every");
  EXPECT_NE(first, std::string::npos);
  EXPECT_EQ(help.out.find("--save-every", first + 20), std::string::npos) << "printed twice";
}

TEST_F(RuntimeRuns, TheTraceNamesEveryUnitOfEveryRank) {
  for (bool processes : {false, true}) {
    const std::string arguments = "--data text --steps 3 --trace trace";
    Ran ran = processes ? mpi(arguments) : threads(arguments);
    ASSERT_EQ(ran.code, 0) << ran.error;
    auto trace = nlohmann::json::parse(read(folder / "trace"));
    std::map<std::pair<int, std::string>, int> seen;
    for (const auto &event : trace["traceEvents"])
      if (event["ph"] == "X") {
        ++seen[{event["pid"].get<int>(), event["name"].get<std::string>()}];
        EXPECT_GE(event["ts"].get<double>(), 0);
      }
    for (std::string unit : {"0F0", "0F1", "0B0", "0B1", "0U"})
      EXPECT_EQ((seen[{0, unit}]), 3) << unit;
    for (std::string unit : {"1B0", "1B1", "1U", "step 2"})
      EXPECT_EQ((seen[{1, unit}]), unit[0] == 's' ? 1 : 3) << unit;
    for (std::string name : {"post act(0)", "wait act(0)", "act(0)"})
      EXPECT_EQ((seen[{0, name}]), 3) << name;
  }
}

TEST_F(RuntimeRuns, AKilledRankIsNamedByAnother) {
  setenv("PP_TEST_FAULT", "kill:1:7", 1);
  Ran waits = mpi("--data text");
  setenv("PP_TEST_FAULT", "kill:1:7,sleep:0:7", 1); // the other one does not even wait for it
  Ran sleeps = mpi("--data text");
  unsetenv("PP_TEST_FAULT");
  for (const Ran &ran : {waits, sleeps}) {
    EXPECT_LT(ran.seconds, 10);
    EXPECT_NE(ran.code, 0);
    ASSERT_EQ(ran.errors().size(), 1u) << ran.error;
    EXPECT_NE(ran.errors()[0].find("rank 1 (process "), std::string::npos) << ran.error;
    EXPECT_NE(ran.errors()[0].find(" ended without an error message in step 7: it was killed, or it crashed"),
              std::string::npos)
        << ran.error;
  }
}

TEST_F(RuntimeRuns, AFailingRankSpeaksOnce) {
  setenv("PP_TEST_FAULT", "fail:1:3", 1);
  Ran processes = mpi("--data text");
  expectError(processes, "rank 1, step 3: asked to fail");
  for (int i = 0; i < 20; ++i) // the other rank may just be copying into the memory of the one that ends
    expectError(threads("--data text"), "rank 1, step 3: asked to fail");
  unsetenv("PP_TEST_FAULT");
}

TEST_F(RuntimeRuns, WhoWaitsForEverIsFound) {
  setenv("PP_TEST_FAULT", "wait:1:3", 1);
  Ran inside = threads("--data text"), processes = mpi("--data text --timeout 0.7");
  setenv("PP_TEST_FAULT", "leak:0:3", 1);
  Ran leaks = threads("--data text");
  unsetenv("PP_TEST_FAULT");
  expectError(inside, "deadlock in step 3: rank 0 after `0F1` waits for `dact(0)` from rank 1 (1024 bytes, channel 1); "
                      "rank 1 waits for `never` from rank 0 (64 bytes, channel 3)");
  ASSERT_EQ(processes.errors().size(), 1u) << processes.error;
  EXPECT_NE(processes.errors()[0].find("is overdue after 0.7 s"), std::string::npos);
  EXPECT_LT(processes.seconds, 10);
  expectError(leaks, "rank 0, step 3: 1 message was posted and never completed");
}

TEST(RuntimeRate, WarmsUpAndDecays) {
  OptimizerSpec optimizer;
  optimizer.warmup = 10;
  optimizer.minLr = 0.1;
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 1, 1, 110), 0.1);
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 1, 10, 110), 1);
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 1, 60, 110), 0.55);
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 1, 110, 110), 0.1);
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 1, 500, 110), 0.1);
  optimizer.decaySteps = 210;
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 2, 110, 500), 1.1);
  optimizer.warmup = 0;
  optimizer.decaySteps = 0;
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 1, 5, 5), 0.1);
}

TEST(RuntimeRate, FallsInOtherWays) {
  OptimizerSpec optimizer;
  optimizer.warmup = 4;
  optimizer.minLr = 0;
  optimizer.rate = OptimizerSpec::Rate::Linear;
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 2, 1, 24), 0.5);
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 2, 4, 24), 2);
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 2, 9, 24), 1.5);
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 2, 24, 24), 0);
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 2, 30, 24), 0);
  optimizer.lag = 1; // step 1 is number 0, as transformers counts
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 2, 1, 24), 0);
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 2, 5, 24), 2);
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 2, 10, 24), 1.5);
  optimizer.rate = OptimizerSpec::Rate::Constant;
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 2, 2, 24), 0.5);
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 2, 500, 24), 2);
  optimizer.rate = OptimizerSpec::Rate::Wsd;
  optimizer.lag = 0;
  optimizer.minLr = 0.2;
  optimizer.decay = 10;
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 1, 1, 30), 0.2 + 0.8 / 4);
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 1, 4, 30), 1);
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 1, 20, 30), 1);
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 1, 25, 30), 0.6);
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 1, 30, 30), 0.2);
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 1, 99, 30), 0.2);
}

/// If the decay ends before or with the warm-up, the warm-up still reaches the peak, and the rate after it is min_lr.
TEST(RuntimeRate, EndsWithTheWarmUp) {
  OptimizerSpec optimizer;
  optimizer.minLr = 0.1;
  optimizer.decay = 2;
  for (auto rate : {OptimizerSpec::Rate::Cosine, OptimizerSpec::Rate::Linear, OptimizerSpec::Rate::Wsd})
    for (int64_t end : {2, 4}) {
      optimizer.rate = rate;
      optimizer.warmup = 4;
      optimizer.decaySteps = end;
      optimizer.lag = 0;
      EXPECT_DOUBLE_EQ(learningRate(optimizer, 2, 2, 9), rate == OptimizerSpec::Rate::Wsd ? 2 * 0.55 : 1);
      EXPECT_DOUBLE_EQ(learningRate(optimizer, 2, 4, 9), 2);
      EXPECT_DOUBLE_EQ(learningRate(optimizer, 2, 5, 9), 0.2);
      EXPECT_DOUBLE_EQ(learningRate(optimizer, 2, 9, 9), 0.2);
      optimizer.lag = 1;
      EXPECT_DOUBLE_EQ(learningRate(optimizer, 2, 5, 9), 2);
      EXPECT_DOUBLE_EQ(learningRate(optimizer, 2, 6, 9), 0.2);
    }
  optimizer.rate = OptimizerSpec::Rate::Constant;
  optimizer.decaySteps = 0;
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 2, 9, 4), 2);
  optimizer.rate = OptimizerSpec::Rate::Linear; // one step without a warm-up: its end, or with lag = 1 its begin
  optimizer.warmup = 0;
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 2, 1, 1), 2);
  optimizer.lag = 0;
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 2, 1, 1), 0.2);
}

} // namespace
