// Two processes of one GPU copy into each other's memory, call by call and in a graph: what messages by copies need.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The test starts itself once more as the other process. (Both share the GPU in turns: the test shows that copies
// arrive, and when; it does not measure their speed.)
#include "runtime/device/Driver.h"
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

namespace pp {
namespace {

constexpr size_t count = size_t(1) << 18;
constexpr int called = 4, launched = 40;

float valueOf(int rank, int step, size_t i) { return float(rank * 1000 + step) + float(i % 251) / 256; }

/// The memory of one process: `sent` and `got` in one block, and three words, of which the first stays 1.
class Peer {
public:
  Peer(int rank, int socket) : rank(rank), socket(socket) {}

  Status open() {
    Options options;
    options.transport.timeoutSeconds = 60;
    PP_TRY(openDriver(options, 0, driver));
    void *memory = nullptr;
    PP_TRY(driver->allocate(2 * count * sizeof(float), memory));
    sent = static_cast<float *>(memory);
    PP_TRY(driver->allocate(3 * sizeof(uint32_t), memory));
    words = static_cast<uint32_t *>(memory);
    PP_TRY(driver->allocateHost(2 * count * sizeof(float), memory));
    given = static_cast<float *>(memory);
    for (Driver::Stream *stream : {&compute, &sends, &receives})
      PP_TRY(driver->makeStream(*stream));
    for (Driver::Event *event : {&posted, &sentAll, &gotAll})
      PP_TRY(driver->makeEvent(*event));
    static const uint32_t one = 1;
    PP_TRY(driver->copy(compute, words, &one, sizeof one));
    PP_TRY(driver->finish());
    Driver::Handle mine[2], theirs[2];
    if (!driver->share(sent, mine[0]) || !driver->share(words, mine[1]))
      return internal("this GPU shares no memory");
    if (write(socket, mine, sizeof mine) != ssize_t(sizeof mine) ||
        recv(socket, theirs, sizeof theirs, MSG_WAITALL) != ssize_t(sizeof theirs))
      return internal("the other process has gone");
    void *itsBlock = nullptr, *itsWords = nullptr;
    if (!driver->openShared(theirs[0], itsBlock) || !driver->openShared(theirs[1], itsWords))
      return internal("the other's memory cannot be opened");
    otherGot = static_cast<float *>(itsBlock) + count;
    otherWords = static_cast<uint32_t *>(itsWords);
    return {};
  }

  /// A message each way, as runtime/cuda/PeerCopies.cpp has them.
  Status ask() {
    const size_t bytes = count * sizeof(float);
    float *got = sent + count;
    PP_TRY(driver->copy(compute, sent, given, bytes));
    PP_TRY(driver->record(posted, compute));
    PP_TRY(driver->wait(sends, posted));
    PP_TRY(driver->wait(receives, posted));
    PP_TRY(driver->await(sends, words + 1, nullptr, 0));
    PP_TRY(driver->copy(sends, otherGot, sent, bytes));
    PP_TRY(driver->copy(sends, otherWords + 2, words, sizeof(uint32_t)));
    PP_TRY(driver->record(sentAll, sends));
    PP_TRY(driver->copy(receives, otherWords + 1, words, sizeof(uint32_t)));
    PP_TRY(driver->await(receives, words + 2, got, bytes));
    PP_TRY(driver->record(gotAll, receives));
    PP_TRY(driver->wait(compute, sentAll));
    PP_TRY(driver->wait(compute, gotAll));
    return driver->copy(compute, given + count, got, bytes);
  }

  Status run() {
    Driver::Graph graph = -1;
    for (int step = 0; step < called + launched; ++step) {
      for (size_t i = 0; i < count; ++i)
        given[i] = valueOf(rank, step, i);
      if (step == called) {
        PP_TRY(driver->beginCapture(compute));
        PP_TRY(ask());
        PP_TRY(driver->endCapture(compute, graph));
      }
      PP_TRY(step < called ? ask() : driver->launch(graph, compute));
      PP_TRY(driver->finish());
      for (size_t i = 0; i < count; ++i)
        if (given[count + i] != valueOf(1 - rank, step, i))
          return internal("process ", rank, ", step ", step, ": element ", i, " is ", given[count + i], ", not ",
                          valueOf(1 - rank, step, i));
    }
    return {};
  }

private:
  int rank, socket;
  std::unique_ptr<Driver> driver;
  float *sent = nullptr, *given = nullptr, *otherGot = nullptr;
  uint32_t *words = nullptr, *otherWords = nullptr;
  Driver::Stream compute = -1, sends = -1, receives = -1;
  Driver::Event posted = -1, sentAll = -1, gotAll = -1;
};

void runPeer(int rank, int socket) {
  Peer peer(rank, socket);
  Status status = peer.open();
  if (status.ok())
    status = peer.run();
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(PeersOfOneGpu, CopyIntoEachOther) {
  if (const char *socket = getenv("PP_PEER_SOCKET"))
    return runPeer(1, atoi(socket));
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  setenv("PP_PEER_SOCKET", std::to_string(ends[1]).c_str(), 1);
  std::string program = "/proc/self/exe", filter = "--gtest_filter=PeersOfOneGpu.CopyIntoEachOther";
  char *words[] = {program.data(), filter.data(), nullptr};
  for (const char *name : {"GTEST_TOTAL_SHARDS", "GTEST_SHARD_INDEX"}) // this test alone is for the other process
    unsetenv(name);
  pid_t other = -1;
  ASSERT_EQ(posix_spawn(&other, program.c_str(), nullptr, nullptr, words, environ), 0);
  unsetenv("PP_PEER_SOCKET");
  close(ends[1]);
  runPeer(0, ends[0]);
  close(ends[0]);
  int status = -1;
  waitpid(other, &status, 0);
  EXPECT_EQ(status, 0) << "of the other process";
}

} // namespace
} // namespace pp
