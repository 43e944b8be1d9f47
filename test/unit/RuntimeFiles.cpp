// What the trainer reads: its options, token files and tensors in files, right ones and every wrong kind.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/Options.h"
#include "runtime/device/Device.h"
#include "runtime/files/EventFile.h"
#include "runtime/files/Folder.h"
#include "runtime/files/Half.h"
#include "runtime/files/Random.h"
#include "runtime/files/Rows.h"
#include "runtime/files/SafeTensors.h"
#include "runtime/trainer/Checkpoint.h"
#include "runtime/trainer/StepInputs.h"
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <unistd.h>

using namespace pp;

namespace {

/// A folder of its own for every test.
class RuntimeFiles : public testing::Test {
protected:
  RuntimeFiles() {
    folder = std::filesystem::temp_directory_path() /
             text("pp-files-", getpid(), "-", testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder);
  }
  ~RuntimeFiles() override { std::filesystem::remove_all(folder); }

  std::string write(const std::string &name, const std::string &body) {
    std::string path = folder / name;
    std::ofstream(path, std::ios::binary) << body;
    return path;
  }
  /// Removes the test's folder from a message.
  std::string plain(std::string message) const {
    std::string prefix = folder.string() + "/";
    for (size_t at; (at = message.find(prefix)) != std::string::npos;)
      message.erase(at, prefix.size());
    return message;
  }

  std::filesystem::path folder;
};

std::string refusal(std::vector<const char *> arguments) {
  Options options;
  Status status = parseOptions(arguments, options);
  return status.ok() ? resolveWeights(Program(), options).message() : status.message();
}

TEST(RuntimeOptions, ReadsBothForms) {
  Options options;
  std::vector<const char *> arguments = {
      "--data=a.txt",   "--steps",      "7",       "--lr=1e-3",  "--seed",       "5", "--save", "out",
      "--save-every=2", "--in-process", "--sends", "rendezvous", "--timeout=1.5"};
  Status status = parseOptions(arguments, options);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(options.data, "a.txt");
  EXPECT_EQ(options.steps, 7);
  EXPECT_EQ(options.lr, 1e-3);
  EXPECT_EQ(options.seed, 5u);
  EXPECT_EQ(options.saveEvery, 2);
  EXPECT_EQ(options.transport.sends, Sends::Rendezvous);
  EXPECT_EQ(options.transport.timeoutSeconds, 1.5);
  EXPECT_TRUE(options.inProcess);
}

TEST(RuntimeOptions, SaysWhatIsWrong) {
  EXPECT_EQ(refusal({"--step", "3"}), "unknown option `--step`; did you mean `--steps`?");
  EXPECT_EQ(refusal({"--zzzzzzzz"}), "unknown option `--zzzzzzzz`; see --help");
  EXPECT_EQ(refusal({"text.txt"}), "unexpected argument `text.txt`; every option begins with `--`, see --help");
  EXPECT_EQ(refusal({"--steps", "0"}), "`--steps` expects a whole number from 1 to 1000000000, got `0`");
  EXPECT_EQ(refusal({"--steps=3x"}), "`--steps` expects a whole number from 1 to 1000000000, got `3x`");
  EXPECT_EQ(refusal({"--lr", "nan"}), "`--lr` expects a number from 0 to 1000000, got `nan`");
  EXPECT_EQ(refusal({"--data"}), "`--data` expects FILE|random after it");
  EXPECT_EQ(refusal({"--data="}), "`--data` expects a path, got nothing");
  EXPECT_EQ(refusal({"--in-process=1"}), "`--in-process` takes no value, got `1`");
  EXPECT_EQ(refusal({"--lr=1", "--lr=2"}), "`--lr` is given twice");
  EXPECT_EQ(refusal({"--sends", "fast"}), "`--sends` expects `buffered` or `rendezvous`, got `fast`");
  EXPECT_EQ(refusal({"--load", "a", "--resume", "b"}), "`--load` and `--resume` both say where to start; give one");
  EXPECT_EQ(refusal({"--save-every", "3"}), "`--save-every` needs `--save DIR`");
  EXPECT_EQ(refusal({"--save", "a", "--save-sync"}), "`--save-sync` needs `--save-every N`");
  EXPECT_EQ(refusal({"--keep", "2"}), "`--keep` needs `--save DIR`");
  EXPECT_EQ(refusal({"--save", "a", "--keep", "0"}), "`--keep` expects a whole number from 1 to 1000000, got `0`");
  EXPECT_EQ(refusal({"--save-type", "f64"}), "`--save-type` expects `f32`, `bf16` or `f16`, got `f64`");
  EXPECT_EQ(refusal({"--save-type", "f32"}), "`--save-type` needs `--save DIR`");
  for (std::string wrong : {"", "0", "5gb", "GB", "-1", "99999999999GB"})
    EXPECT_EQ(refusal({"--save=a", "--shard-size", wrong.c_str()}),
              "`--shard-size` expects a number of bytes, as 5GB, 200MB or 4096, got `" + wrong + "`");
  EXPECT_EQ(refusal({"--save=a", "--shard-size=1", "--resume=b"}),
            "`--shard-size` and `--resume` exclude each other, for the size of the checkpoint is kept; give one");
  EXPECT_EQ(refusal({"--allow-unused", "a,,b"}), "`--allow-unused` expects names with commas between them, got `a,,b`");
  EXPECT_EQ(refusal({"--allow-unused", "a"}), "`--allow-unused` needs `--load`");
  EXPECT_EQ(refusal({"--init"}), "`--init` has no effect: this program was not made from a published folder");
  EXPECT_EQ(refusal({"--init", "--load=a"}), "`--init` and `--load` both say where to start; give one");
  EXPECT_EQ(refusal({"--init", "--resume=a"}), "`--init` and `--resume` both say where to start; give one");
  EXPECT_EQ(refusal({"--changed", "data,seed", "--resume=a"}),
            "`--changed` expects `data`, `optimizer`, `shape` or `config` with commas between them, got `data,seed`");
  EXPECT_EQ(refusal({"--transport", "threads"}), "`--transport` expects `mpi`, `nccl` or `copies`, got `threads`");
  EXPECT_EQ(refusal({"--transport=mpi", "--in-process"}),
            "`--in-process` and `--transport` both say how messages go; give one");
  EXPECT_EQ(refusal({"--keep", "1"}), "`--keep` needs `--save DIR`");
  EXPECT_EQ(refusal({"--delay", "1"}), "`--delay` needs `--in-process`");
}

TEST(RuntimeOptions, RefusesWhatHasNoEffect) {
  EXPECT_EQ(refusal({"--info", "--steps", "3"}), "`--steps` has no effect beside `--info`");
  EXPECT_EQ(refusal({"--version", "--in-process"}), "`--in-process` has no effect beside `--version`");
  EXPECT_EQ(refusal({"--steps=3", "--stop-at=4"}), "`--stop-at 4` has no effect: the last step is 3");
  EXPECT_EQ(refusal({"--transport=nccl", "--sends=buffered"}), "`--sends` has no effect with `--transport nccl`");
  EXPECT_EQ(refusal({"--steps=3", "--stop-at=3"}), "");
  EXPECT_EQ(refusal({"--info", "--help"}), "");
}

/// A program of a published folder begins with the weights there, unless the command line says otherwise.
TEST(RuntimeOptions, TheCompiledFolderIsTheOneThatIsRead) {
  Program program;
  program.folder = "published";
  auto loaded = [&](Options options) { return resolveWeights(program, options).ok() ? options.load : "refused"; };
  Options other, random, resumed, over;
  other.load = "other";
  random.init = true;
  resumed.resume = "saved";
  over.save = "published";
  EXPECT_EQ(loaded({}), "published");
  EXPECT_EQ(loaded(other), "other");
  EXPECT_EQ(loaded(random), "");
  EXPECT_EQ(loaded(resumed), "");
  EXPECT_EQ(loaded(over), "refused");
}

TEST(RuntimeOptions, ReadsTheShortFormOfHelp) {
  Options options;
  std::vector<const char *> arguments = {"-h", "--steps", "3"};
  EXPECT_TRUE(parseOptions(arguments, options).ok());
  EXPECT_TRUE(options.help);
}

TEST_F(RuntimeFiles, NothingIsWrittenOverWhatIsRead) {
  std::string text = write("t.txt", "abc"), link = (folder / "link").string(), dots = (folder / "." / "t.txt").string();
  std::filesystem::create_symlink(text, link);
  for (const std::string &same : {text, link, dots})
    EXPECT_EQ(plain(refusal({"--data", text.c_str(), "--log", same.c_str()})),
              "`--log " + plain(same) + "` would be written over what `--data` names");
  EXPECT_EQ(refusal({"--trace=x", "--profile=x"}), "`--profile x` would be written over what `--trace` names");
  EXPECT_EQ(plain(refusal({"--data", ("u16:" + text).c_str(), "--log", text.c_str()})),
            "`--log t.txt` would be written over what `--data` names");
  EXPECT_EQ(refusal({"--data=random", "--log=random"}), "");
}

/// A file read row after row.
struct Stream {
  Tokens tokens;
  Rows rows;
  Status open(const std::string &data, int64_t sequence, int64_t vocab, uint64_t seed) {
    PP_TRY(tokens.open(data, vocab, seed, /*check=*/true));
    return rows.open(tokens, tokenPath(data), sequence, Packing::Stream);
  }
};

std::string tokenFile(int32_t magic, int32_t version, int32_t count, const std::vector<uint16_t> &tokens) {
  int32_t header[256] = {magic, version, count};
  std::string body(reinterpret_cast<const char *>(header), sizeof header);
  body.append(reinterpret_cast<const char *>(tokens.data()), 2 * tokens.size());
  return body;
}

TEST_F(RuntimeFiles, TokensOfATextWalkInOrderAndWrap) {
  Stream tokens;
  ASSERT_TRUE(tokens.open(write("t.txt", "abcdefghij"), 3, 256, 1).ok());
  EXPECT_EQ(tokens.rows.rowsOf(1), 3);
  int32_t out[3];
  tokens.rows.read(2, Rows::What::Tokens, out);
  EXPECT_EQ(std::string(out, out + 3), "ghi");
  tokens.rows.read(2, Rows::What::Targets, out);
  EXPECT_EQ(std::string(out, out + 3), "hij");
  tokens.rows.read(3, Rows::What::Tokens, out);
  EXPECT_EQ(std::string(out, out + 3), "abc");
}

TEST(RuntimeShuffle, IsABijectionOfEverySize) {
  for (int64_t count = 1; count < 300; ++count) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < count; ++i)
      seen.insert(shuffled(3, 1, i, count));
    EXPECT_EQ(int64_t(seen.size()), count);
    EXPECT_EQ(*seen.begin(), 0);
    EXPECT_EQ(*seen.rbegin(), count - 1);
  }
  int64_t moved = 0;
  for (int64_t i = 0; i < 1000; ++i)
    moved += shuffled(3, 1, i, 1000) != shuffled(3, 2, i, 1000);
  EXPECT_GT(moved, 980); // two random orders agree in about one place
}

/// The polynomial's check value, as RFC 3720 has it.
TEST(RuntimeEventFile, ChecksByCastagnoli) { EXPECT_EQ(crc32c("123456789"), 0xe3069283u); }

TEST(RuntimeChecksum, IsThatOfZipFiles) {
  EXPECT_EQ(Checksum::of("123456789"), "cbf43926");
  std::string bytes;
  for (int i = 0; i < 100; ++i)
    bytes += char(i * 37);
  for (size_t cut = 0; cut <= bytes.size(); ++cut) { // however they come
    Checksum sum;
    sum.add(bytes.data(), cut);
    sum.add(bytes.data() + cut, bytes.size() - cut);
    EXPECT_EQ(sum.text(), Checksum::of(bytes));
  }
}

TEST(RuntimeCheckpoint, ACopyThatIsLargerThanTheMemoryIsRefused) {
  EXPECT_TRUE(checkMemory(1, 2).ok());
  EXPECT_TRUE(checkMemory(1, int64_t(1) << 60)
                  .message()
                  .starts_with("`--save-every` writes behind the steps, from a copy "
                               "of 1152921504606846976 bytes, and "));
}

TEST_F(RuntimeFiles, ARankWritesIntoTheFolderThatItHasEntered) {
  const std::string fresh = folder / "ck.tmp", file = fresh + "/model.safetensors";
  std::filesystem::create_directory(fresh);
  ASSERT_TRUE(SharedFolder::sign(fresh, stateFile, 7).ok());
  SharedFolder shared;
  ASSERT_TRUE(shared.enter(fresh, stateFile, 7, "node1", /*seconds=*/0).ok());
  std::filesystem::rename(fresh, folder / "ck"); // as seen late on another host: the path leads elsewhere
  std::filesystem::create_directory(fresh);
  SafeTensorsWriter writer;
  const float one = 1;
  ASSERT_TRUE(writer.open(file, {{"x", "F32", {1}}}, {}, shared.descriptor()).ok());
  ASSERT_TRUE(writer.write(&one, sizeof one).ok());
  ASSERT_TRUE(writer.finish().ok());
  EXPECT_TRUE(std::filesystem::exists(folder / "ck/model.safetensors"));
  EXPECT_TRUE(std::filesystem::is_empty(fresh));
  // The folder of another save, and none at all.
  ASSERT_TRUE(SharedFolder::sign(fresh, stateFile, 8).ok());
  for (int i = 0; i < 2; ++i) {
    const std::string why = plain(shared.enter(fresh, stateFile, 7, "node1", /*seconds=*/0).message());
    EXPECT_TRUE(why.starts_with("cannot save to `ck`: what rank 0 writes there on host `node1` is not there on host "));
    std::filesystem::remove_all(fresh);
  }
}

TEST_F(RuntimeFiles, TokensOfATokenFile) {
  Stream tokens;
  Status status = tokens.open(write("t.bin", tokenFile(20240520, 1, 5, {10, 50256, 12, 13, 14})), 2, 50257, 1);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(tokens.rows.rowsOf(1), 2);
  int32_t out[2];
  tokens.rows.read(0, Rows::What::Targets, out);
  EXPECT_EQ(out[0], 50256);
  EXPECT_EQ(out[1], 12);
}

/// Tokens that need more than 16 bits: with llm.c's second header, and with none.
TEST_F(RuntimeFiles, TokensOf32Bits) {
  int32_t header[256] = {20240801, 7, 5};
  uint32_t words[] = {1, 65536, 128255, 3, 4};
  std::string body(reinterpret_cast<const char *>(words), sizeof words);
  write("plain", body);
  write("llmc", std::string(reinterpret_cast<const char *>(header), sizeof header) + body);
  for (const char *name : {"plain", "llmc"}) {
    Stream tokens;
    std::string path = (folder / name).string();
    Status status = tokens.open(name == std::string("plain") ? "u32:" + path : path, 2, 128256, 1);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(tokens.tokens.count(), 5);
    int32_t out[2];
    tokens.rows.read(0, Rows::What::Targets, out);
    EXPECT_EQ(out[0], 65536);
    EXPECT_EQ(out[1], 128255);
  }
  Stream small;
  EXPECT_EQ(plain(small.open("u32:" + (folder / "plain").string(), 2, 128255, 1).message()),
            "token 2 of `plain` is 128255; the model's vocabulary has 128255, 0 to 128254");
}

TEST_F(RuntimeFiles, TokensWithoutAHeader) {
  std::string path = write("t", std::string("\x01\x00\xff\xff\x02\x00\x03\x00", 8));
  Stream tokens, odd;
  ASSERT_TRUE(tokens.open("u16:" + path, 2, 65536, 1).ok());
  EXPECT_EQ(tokens.tokens.count(), 4);
  int32_t out[2];
  tokens.rows.read(0, Rows::What::Targets, out);
  EXPECT_EQ(out[0], 65535);
  EXPECT_EQ(out[1], 2);
  write("t", "12345");
  EXPECT_EQ(plain(odd.open("u16:" + path, 2, 65536, 1).message()),
            "`t` has 5 bytes, which is no multiple of the 2 bytes of a token");
}

TEST_F(RuntimeFiles, FilesThatAreNoTextAreRefused) {
  auto refused = [&](const std::string &body) {
    Stream tokens;
    return plain(tokens.open(write("t", body), 2, 256, 1).message());
  };
  std::string more = "; if it holds nothing but tokens, `u8:t`, `u16:t` or `u32:t` says how wide they are";
  std::string numpy = "data `t` is an array of NumPy, whose header is no tokens; its `tofile` writes tokens alone";
  EXPECT_EQ(refused("\x93NUMPY and more"), numpy);
  Stream tokens; // an even number of bytes, all below the vocabulary
  EXPECT_EQ(plain(tokens.open("u16:" + write("t", "\x93NUMPY and more."), 2, 65536, 1).message()), numpy);
  EXPECT_EQ(refused("PK\x03\x04 and more"), "data `t` is a zip archive" + more);
  EXPECT_EQ(refused(std::string("a\0b\0c\0", 6)), "data `t` is neither UTF-8 text nor a token file of llm.c" + more);
  EXPECT_EQ(refused(std::string(65535, 'a') + std::string(1, '\0')),
            "data `t` is neither UTF-8 text nor a token file of llm.c" + more);
  EXPECT_EQ(refused("Latin-1 \xe4 is for the user to name"),
            "data `t` is neither UTF-8 text nor a token file of llm.c" + more);
  EXPECT_EQ(refused("a text\tof \xc3\xa4, \xe2\x98\x83 and \x1b[1mterminals\r\n"), "");
  EXPECT_EQ(refused(std::string(65534, 'a') + "\xe2\x98\x83"), ""); // what is looked at ends inside a character
  EXPECT_TRUE(tokens.open("u8:" + write("t", "\xe4\x07 and more."), 2, 256, 1).ok());
}

TEST_F(RuntimeFiles, RandomTokensAreShiftedOnesOfThemselves) {
  Stream tokens, again;
  ASSERT_TRUE(tokens.open("random", 8, 100, 3).ok());
  ASSERT_TRUE(again.open("random", 8, 100, 3).ok());
  int32_t in[8], target[8], same[8];
  tokens.rows.read(17, Rows::What::Tokens, in);
  tokens.rows.read(17, Rows::What::Targets, target);
  again.rows.read(17, Rows::What::Tokens, same);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(in[i], same[i]);
    EXPECT_LT(in[i], 100);
    EXPECT_EQ(in[i], i ? target[i - 1] : in[0]);
  }
}

TEST_F(RuntimeFiles, WrongTokensAreRefused) {
  auto refused = [&](const std::string &body, int64_t sequence, int64_t vocab) {
    Stream tokens;
    return plain(tokens.open(write("t", body), sequence, vocab, 1).message());
  };
  EXPECT_EQ(refused("abc", 3, 256), "data `t` has 3 tokens; one sequence of 3 needs 4");
  EXPECT_EQ(refused("", 3, 256), "data `t` has 0 tokens; one sequence of 3 needs 4");
  EXPECT_EQ(refused("abcz", 3, 100), "token 3 of `t` is 122; the model's vocabulary has 100, 0 to 99");
  EXPECT_EQ(refused(tokenFile(20240520, 1, 5, {1, 2, 3, 4}), 2, 256),
            "token file `t` does not fit its header: 5 tokens need 1034 bytes, the file has 1032");
  EXPECT_EQ(refused(tokenFile(20240520, 2, 1, {1}), 2, 256),
            "token file `t` has version 2; this program reads version 1");
  EXPECT_EQ(refused(tokenFile(20240520, 1, 5, {}).substr(0, 20), 2, 256),
            "token file `t` is truncated: 20 bytes, its header alone has 1024");
  Stream tokens;
  EXPECT_EQ(plain(tokens.open(folder / "none", 2, 256, 1).message()),
            "cannot read data `none`: No such file or directory");
  EXPECT_EQ(tokens.open("/tmp", 2, 256, 1).message(), "cannot read data `/tmp`: it is not a regular file");
}

std::string fileOf(const std::string &header, const std::string &data) {
  uint64_t size = header.size();
  return std::string(reinterpret_cast<const char *>(&size), 8) + header + data;
}

TEST_F(RuntimeFiles, TensorsComeBack) {
  std::string path = folder / "m.safetensors";
  const float a[] = {1, 2, 3, 4, 5, 6};
  const uint16_t b[] = {0x3f80, 0xc000}; // 1 and -2 in bf16
  {
    SafeTensorsWriter writer;
    ASSERT_TRUE(writer.open(path, {{"a", "F32", {2, 3}}, {"b\"", "BF16", {2}}}, {{"format", "pt"}}).ok());
    ASSERT_TRUE(writer.write(a, sizeof a).ok());
    ASSERT_TRUE(writer.write(b, sizeof b).ok());
    EXPECT_FALSE(std::filesystem::exists(path));
    ASSERT_TRUE(writer.finish().ok());
  }
  SafeTensors file;
  Status status = file.open(path);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(file.metadata().at("format"), "pt");
  const FileTensor &tensor = file.tensors().at("a");
  EXPECT_EQ(tensor.shape, (std::vector<int64_t>{2, 3}));
  for (int i = 0; i < 6; ++i)
    EXPECT_EQ(SafeTensors::readerOf("F32")(file.data(tensor), i), i + 1);
  EXPECT_EQ(SafeTensors::readerOf("BF16")(file.data(file.tensors().at("b\"")), 1), -2);
  EXPECT_EQ(SafeTensors::readerOf("I64"), nullptr);
}

TEST_F(RuntimeFiles, TheTypeInAConfigIsExchangedAlone) {
  EXPECT_EQ(withDtype("{\"a\": \"dtype\", \"dtype\":\"float32\"}", "bfloat16"),
            "{\"a\": \"dtype\", \"dtype\":\"bfloat16\"}");
  EXPECT_EQ(withDtype("{\n  \"torch_dtype\": null ,\n  \"b\": [\"dtype\", {\"dtype\": 1}]\n}\n", "float16"),
            "{\n  \"torch_dtype\": \"float16\" ,\n  \"b\": [\"dtype\", {\"dtype\": 1}]\n}\n");
  EXPECT_EQ(withDtype("{\"x\\\"dtype\": 3, \"dtype\": {\"y\": [1, 2]}, \"z\": 1}", "float32"),
            "{\"x\\\"dtype\": 3, \"dtype\": \"float32\", \"z\": 1}");
  EXPECT_EQ(withDtype("{}", "float32"), "{}");
  EXPECT_EQ(withDtype("{\"dtype\"", "float32"), "{\"dtype\"");
}

TEST_F(RuntimeFiles, AFileNotFinishedLeavesNothing) {
  std::string path = folder / "m.safetensors";
  {
    SafeTensorsWriter writer;
    ASSERT_TRUE(writer.open(path, {{"a", "F32", {1}}}, {}).ok());
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST_F(RuntimeFiles, CorruptTensorsAreRefused) {
  auto refused = [&](const std::string &body) {
    SafeTensors file;
    return plain(file.open(write("m", body)).message());
  };
  auto entry = [](const std::string &more) { return "{\"a\":{\"dtype\":\"F32\"," + more + "}}"; };
  EXPECT_EQ(refused("abc"), "`m` is not a safetensors file: 3 bytes, the header's length alone has 8");
  EXPECT_EQ(
      refused("this is a text and no tensor"),
      "`m` is not a safetensors file: its header claims 2338328219631577204 bytes, at most 100000000 are allowed");
  EXPECT_EQ(refused(fileOf(std::string(100, ' '), "").substr(0, 50)),
            "`m` is truncated: its header has 100 bytes, the file 42 after the length");
  EXPECT_TRUE(refused(fileOf("{\"a\"\n 3", "")).starts_with("the header of `m:2:2` is corrupt: it is no JSON: "));
  EXPECT_TRUE(refused(fileOf("{\"a\":3}", "")).starts_with("the header of `m:1:2` is corrupt: `a` needs `dtype`, "));
  std::string one = "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}";
  EXPECT_EQ(refused(fileOf("{" + one + "," + one + "}", std::string(4, 0))),
            "the header of `m` is corrupt: `a` is there twice");
  std::string good = entry("\"shape\":[2,2],\"data_offsets\":[0,16]");
  EXPECT_EQ(refused(fileOf(good, std::string(16, 0))), "");
  EXPECT_EQ(refused(fileOf(good, std::string(12, 0))),
            "`m` is truncated: `a` ends at byte 16 of the data, the file has 12");
  EXPECT_EQ(refused(fileOf(good, std::string(20, 0))),
            "`m` is corrupt: its tensors end at byte 16 of the data, the file has 20");
  EXPECT_EQ(refused(fileOf(entry("\"shape\":[3],\"data_offsets\":[0,16]"), std::string(16, 0))),
            "`m` is corrupt: `a` of type F32 and shape [3] needs 12 bytes, its offsets are 0 to 16");
  EXPECT_EQ(refused(fileOf(entry("\"shape\":[-4],\"data_offsets\":[0,16]"), std::string(16, 0))),
            "`m` is corrupt: `a` has shape [-4]");
  EXPECT_EQ(refused(fileOf("{\"a\":{\"dtype\":\"F99\",\"shape\":[1],\"data_offsets\":[0,4]}}", std::string(4, 0))),
            "`m`: `a` has the unknown type F99");
  std::string two = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                    "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}";
  EXPECT_EQ(refused(fileOf(two, std::string(12, 0))),
            "`m` is corrupt: `b` begins at byte 4 of the data, inside the tensor before it, which ends at 8");
}

/// One value of a type in another, as bits; `vanished` says whether it became 0.
template <typename Bits, typename From> Bits converted(const char *type, From value, Type to, int64_t &vanished) {
  Bits bits = 0;
  vanished = 0;
  Status status = convert("x", SafeTensors::readerOf(type), reinterpret_cast<const char *>(&value), 1, to,
                          reinterpret_cast<char *>(&bits), vanished);
  EXPECT_TRUE(status.ok()) << status.message();
  return bits;
}
template <typename From> std::string unconverted(const char *type, From value, Type to) {
  uint64_t bits = 0;
  int64_t vanished = 0;
  return convert("f`: `x", SafeTensors::readerOf(type), reinterpret_cast<const char *>(&value), 1, to,
                 reinterpret_cast<char *>(&bits), vanished)
      .message();
}

TEST(RuntimeNumbers, ConversionsRoundOnceAtTheirBorders) {
  int64_t vanished = 0;
  // F16 -> BF16: the largest number of f16 rounds up; the smallest is exact.
  EXPECT_EQ((converted<uint16_t>("F16", uint16_t(0x7bff), Type::Bf16, vanished)), 0x4780); // 65504 -> 65536
  EXPECT_EQ((converted<uint16_t>("F16", uint16_t(0x0001), Type::Bf16, vanished)), 0x3380); // 2^-24
  // BF16 -> F16: 65280 is the last that fits; 2^-24 stays, and 2^-25, half way to 0, goes to even.
  EXPECT_EQ((converted<uint16_t>("BF16", uint16_t(0x477f), Type::F16, vanished)), 0x7bf8);
  EXPECT_EQ(unconverted("BF16", uint16_t(0x4780), Type::F16),
            "`f`: `x` has the value 65536, which is too large for F16");
  EXPECT_EQ(unconverted("BF16", uint16_t(0xc780), Type::F16),
            "`f`: `x` has the value -65536, which is too large for F16");
  EXPECT_EQ((converted<uint16_t>("BF16", uint16_t(0x3380), Type::F16, vanished)), 0x0001);
  EXPECT_EQ(vanished, 0);
  EXPECT_EQ((converted<uint16_t>("BF16", uint16_t(0x3301), Type::F16, vanished)), 0x0001); // beyond half way
  EXPECT_EQ(vanished, 0);
  EXPECT_EQ((converted<uint16_t>("BF16", uint16_t(0x3300), Type::F16, vanished)), 0x0000);
  EXPECT_EQ(vanished, 1);
  EXPECT_EQ((converted<uint16_t>("F64", 1e-300, Type::F16, vanished)), 0x0000);
  EXPECT_EQ(vanished, 1);
  EXPECT_EQ((converted<uint16_t>("F64", 0.0, Type::F16, vanished)), 0x0000);
  EXPECT_EQ(vanished, 0);
  // F32 -> F16: 65520 is half way to what would be 65536.
  EXPECT_EQ((converted<uint16_t>("F32", std::nextafter(65520.0f, 0.0f), Type::F16, vanished)), 0x7bff);
  EXPECT_EQ(unconverted("F32", 65520.0f, Type::F16), "`f`: `x` has the value 65520, which is too large for F16");
  // F32 -> BF16: half way beyond the largest number.
  EXPECT_EQ((converted<uint16_t>("F32", 0x1.fefffep127f, Type::Bf16, vanished)), 0x7f7f);
  EXPECT_NE(unconverted("F32", 0x1.ffp127f, Type::Bf16), "");
  // F64 -> F32: ties to even, and the end of the range.
  EXPECT_EQ((converted<uint32_t>("F64", 1 + 0x1p-24, Type::F32, vanished)), 0x3f800000u);
  EXPECT_EQ((converted<uint32_t>("F64", 1 + 0x3p-24, Type::F32, vanished)), 0x3f800002u);
  EXPECT_EQ((converted<uint32_t>("F64", 0x1.fffffefffffffp127, Type::F32, vanished)), 0x7f7fffffu);
  EXPECT_NE(unconverted("F64", 0x1.ffffffp127, Type::F32), "");
  // Conversions to wider types are exact; infinities and NaNs stay what they are.
  EXPECT_EQ((converted<uint32_t>("BF16", uint16_t(0xc001), Type::F32, vanished)), 0xc0010000u);
  EXPECT_EQ((converted<uint32_t>("F16", uint16_t(0x8001), Type::F32, vanished)), 0xb3800000u);
  EXPECT_EQ((converted<uint64_t>("F32", -0x1p-149f, Type::F64, vanished)), std::bit_cast<uint64_t>(-0x1p-149));
  EXPECT_EQ((converted<uint16_t>("F32", INFINITY, Type::F16, vanished)), 0x7c00);
  EXPECT_TRUE(std::isnan(fromBf16(converted<uint16_t>("F64", double(NAN), Type::Bf16, vanished))));
}

/// Documents a b c d | e f g with weights 1 1 0 2 | 1 1 1, a number and two ints for each token.
class RuntimeColumns : public RuntimeFiles {
protected:
  RuntimeColumns() {
    program.microbatches = 2;
    program.sequence = 4;
    program.vocab = 16;
    program.precision = "f32";
    program.documents = true;
    program.columns = {{"adv", 0, false, {}}, {"ids", 2, true, {}}, {"more", 0, false, 0.25}};
  }

  std::string dataset(const std::vector<int32_t> &ids) {
    const std::string path = folder / "data.safetensors";
    const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7};
    const std::vector<int64_t> documents = {0, 4, 7};
    const std::vector<float> counted = {1, 1, 0, 2, 1, 1, 1}, adv = {10, 11, 12, 13, 14, 15, 16};
    SafeTensorsWriter writer;
    Status status = writer.open(path,
                                {{"tokens", "I32", {7}},
                                 {"documents", "I64", {3}},
                                 {"counted", "F32", {7}},
                                 {"adv", "F32", {7}},
                                 {"ids", "I32", {7, 2}}},
                                {});
    auto put = [&](const auto &values) {
      if (status.ok())
        status = writer.write(values.data(), values.size() * sizeof values[0]);
    };
    put(tokens), put(documents), put(counted), put(adv), put(ids);
    EXPECT_TRUE(status.ok() && writer.finish().ok());
    return path;
  }
  static std::vector<int32_t> ids() { return {0, 1, 2, 3, -1, 99, 6, 7, 8, 9, 10, 11, 12, 13}; }

  Program program;
};

TEST_F(RuntimeColumns, APlaceHasTheValuesOfItsTarget) {
  StepInputs inputs(program, 0);
  Status status = inputs.open(dataset(ids()), "", 1, Packing::Whole, /*check=*/true);
  ASSERT_TRUE(status.ok()) << status.message(); // the token that counts nowhere may have ids of any kind
  inputs.begin(1);
  OptimizerScalars scalars;
  inputs.setDivisors({{"token_mean_bwd", Type::F32, {4, 4, 0, 4}, {1, 0, divisorOfColumn}, {"counted"}},
                      {"token_mean", Type::F32, {4, 4, 0, 4}, {1, 0, divisorOfDocuments}, {"counted"}}},
                     0, scalars);
  EXPECT_EQ(scalars.divisors[divisorOfColumn], 11 + 2 * 13 + 15 + 16);
  EXPECT_EQ(scalars.divisors[divisorOfDocuments], 2);
  EXPECT_EQ(scalars.divisors[divisorOfColumn + 1], 0); // no op asks for it
  EXPECT_EQ(inputs.divisor(0), 1 + 2 + 1 + 1);
  RankProgram rank;
  rank.arenaBytes = 256;
  auto device = makeHostDevice();
  ASSERT_TRUE(device->allocate(rank, 0).ok());
  using Kind = InputSpec::Kind;
  ASSERT_TRUE(inputs
                  .fill({{Kind::Column, 0, 0, 0, 4, 0, 0},
                         {Kind::Column, 0, 64, 0, 4, 0, 1},
                         {Kind::Column, 1, 128, 1, 2, 0, 0},
                         {Kind::Column, 1, 192, 0, 4, 0, 2}},
                        -1, *device)
                  .ok());
  auto numbers = [&](int64_t at, size_t count) {
    std::vector<float> out(count);
    memcpy(out.data(), device->at(at), count * sizeof(float));
    return out;
  };
  EXPECT_EQ(numbers(0, 4), (std::vector<float>{11, 0, 13, 0})); // c does not count, and behind d there is nothing
  std::vector<int32_t> wide(8);
  memcpy(wide.data(), device->at(64), sizeof(int32_t) * 8);
  EXPECT_EQ(wide, (std::vector<int32_t>{2, 3, 0, 0, 6, 7, 0, 0}));
  EXPECT_EQ(numbers(128, 2), (std::vector<float>{16, 0}));            // places 1 and 2 of the second row
  EXPECT_EQ(numbers(192, 4), (std::vector<float>{0.25, 0.25, 0, 0})); // a default, where there is a target
}

TEST_F(RuntimeColumns, F64ReadsEightBytes) {
  program.precision = "f64";
  StepInputs inputs(program, 0);
  ASSERT_TRUE(inputs.open(dataset(ids()), "", 1, Packing::Split, /*check=*/true).ok());
  inputs.begin(1);
  RankProgram rank;
  rank.arenaBytes = 256;
  auto device = makeHostDevice();
  ASSERT_TRUE(device->allocate(rank, 0).ok());
  using Kind = InputSpec::Kind;
  ASSERT_TRUE(inputs.fill({{Kind::Tokens, 1, 0, 0, 3}, {Kind::Column, 0, 64, 0, 4, 0, 0}}, -1, *device).ok());
  std::vector<double> out(4);
  memcpy(out.data(), device->at(64), sizeof(double) * 4);
  EXPECT_EQ(out, (std::vector<double>{11, 0, 13, 0}));
}

/// Both documents are one group: a place knows where its group begins, and which document of it it is in.
TEST_F(RuntimeColumns, DocumentsOfAGroupStayTogether) {
  program.sequence = 8;
  program.group = 2;
  program.columns = {{"group", 0, true, {}, true}, {"member", 0, false, {}, true}};
  StepInputs inputs(program, 0);
  ASSERT_TRUE(inputs.open(dataset(ids()), "", 1, {}, /*check=*/true).ok());
  inputs.begin(1);
  OptimizerScalars scalars;
  inputs.setDivisors({{"token_mean", Type::F32, {8, 8, 0, 8}, {1, 0, divisorOfGroups}, {"counted"}}}, 0, scalars);
  EXPECT_EQ(scalars.divisors[divisorOfGroups], 2); // a row is the group, and the step has it twice
  RankProgram rank;
  rank.arenaBytes = 256;
  auto device = makeHostDevice();
  ASSERT_TRUE(device->allocate(rank, 0).ok());
  using Kind = InputSpec::Kind;
  ASSERT_TRUE(inputs.fill({{Kind::Column, 0, 0, 0, 8, 0, 0}, {Kind::Column, 0, 64, 0, 8, 0, 1}}, -1, *device).ok());
  std::vector<int32_t> begins(8);
  std::vector<float> members(8);
  memcpy(begins.data(), device->at(0), sizeof(int32_t) * 8);
  memcpy(members.data(), device->at(64), sizeof(float) * 8);
  EXPECT_EQ(begins, (std::vector<int32_t>{0, 0, 0, 0, 0, 0, 0, 7}));
  EXPECT_EQ(members, (std::vector<float>{0, 0, 0, 0, 1, 1, 1, 0}));
  program.sequence = 6;
  EXPECT_EQ(plain(StepInputs(program, 0).open(dataset(ids()), "", 1, {}, /*check=*/true).message()),
            "documents 0 to 1 of `data.safetensors` are a group of 7 tokens; a row of this program has 6, and groups "
            "are not cut: compile it with a larger `data.sequence`");
}

TEST_F(RuntimeColumns, IdsOutsideOfTheVocabularyAreRefused) {
  auto refused = [&](size_t at, int32_t id) {
    std::vector<int32_t> all = ids();
    all[at] = id;
    StepInputs inputs(program, 0);
    return plain(inputs.open(dataset(all), "", 1, {}, /*check=*/true).message());
  };
  EXPECT_EQ(refused(7, 16), "column `ids` of `data.safetensors` has 16 at token 3, value 1; expected a token of the "
                            "vocabulary, 0 to 15");
  EXPECT_EQ(refused(8, -1), "column `ids` of `data.safetensors` has -1 at token 4, value 0; expected a token of the "
                            "vocabulary, 0 to 15");
  program.columns = {{"adv", 0, true, {}}};
  EXPECT_EQ(refused(0, 0),
            "column `adv` of `data.safetensors` is F32 [7]; the model reads ints, [7] of type I32 or U8");
}

/// What a program reads of a file tells two files apart, and nothing else.
TEST_F(RuntimeColumns, FingerprintsHaveTheColumnsThatAreRead) {
  auto facts = [&](int32_t id) {
    std::vector<int32_t> all = ids();
    all.back() = id;
    StepInputs inputs(program, 0);
    EXPECT_TRUE(inputs.open(dataset(all), "", 1, {}, /*check=*/true).ok());
    return inputs.fingerprint() + " " + inputs.checksum();
  };
  EXPECT_NE(facts(1), facts(2));
  program.columns.erase(program.columns.begin() + 1);
  EXPECT_EQ(facts(1), facts(2));
}

TEST(RuntimeNumbers, Bf16RoundsToEven) {
  EXPECT_EQ(roundToBf16(1.0f), 0x3f80);
  EXPECT_EQ(roundToBf16(1.0f + 0x1p-8f), 0x3f80); // half way: to even
  EXPECT_EQ(roundToBf16(1.0f + 0x3p-8f), 0x3f82); // half way: to even
  EXPECT_EQ(roundToBf16(-1.0f - 0x1.1p-8f), 0xbf81);
  EXPECT_TRUE(std::isnan(fromBf16(roundToBf16(NAN))));
  EXPECT_EQ(roundToBf16(INFINITY), 0x7f80);
}

TEST(RuntimeNumbers, F16OfEveryKind) {
  EXPECT_EQ(fromF16(0x3c00), 1.0f);
  EXPECT_EQ(fromF16(0xc000), -2.0f);
  EXPECT_EQ(fromF16(0x0001), 0x1p-24f);
  EXPECT_EQ(fromF16(0x7bff), 65504.0f);
  EXPECT_TRUE(std::isinf(fromF16(0x7c00)));
  EXPECT_TRUE(std::isnan(fromF16(0x7e00)));
}

/// Each number of f16 is its own rounding; half way to the next one it goes to the even one, a bit further to the next.
TEST(RuntimeNumbers, F16RoundsToEven) {
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    float here = fromF16(uint16_t(bits)), next = bits == 0x7bff ? 65536.0f : fromF16(uint16_t(bits + 1));
    float middle = here + (next - here) / 2;
    ASSERT_LT(here, next);
    ASSERT_EQ(roundToF16(here), bits);
    ASSERT_EQ(roundToF16(-here), bits | 0x8000);
    ASSERT_EQ(roundToF16(middle), bits + (bits & 1)) << bits;
    ASSERT_EQ(roundToF16(std::nextafter(middle, 0.0f)), bits);
    ASSERT_EQ(roundToF16(-std::nextafter(middle, 1e9f)), (bits + 1) | 0x8000);
  }
  EXPECT_EQ(roundToF16(INFINITY), 0x7c00);
  EXPECT_EQ(roundToF16(-3e38f), 0xfc00);
  EXPECT_TRUE(std::isnan(fromF16(roundToF16(NAN))));
}

TEST(RuntimeNumbers, NormalNumbersHaveTheirMoments) {
  uint64_t key = keyOf(1, "model.norm.weight");
  double sum = 0, squares = 0, fourth = 0;
  const int count = 200000;
  for (int i = 0; i < count; ++i) {
    double x = normalAt(key, uint64_t(i));
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / count, 0, 0.01);
  EXPECT_NEAR(squares / count, 1, 0.02);
  EXPECT_NEAR(fourth / count, 3, 0.15);
  EXPECT_NE(normalAt(key, 0), normalAt(keyOf(2, "model.norm.weight"), 0));
  EXPECT_NE(normalAt(key, 0), normalAt(keyOf(1, "model.norm.bias"), 0));
}

} // namespace
