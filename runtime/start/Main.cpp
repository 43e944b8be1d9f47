// The main of every emitted program: understands the command line, starts the ranks, and says once what went wrong.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/Version.h"
#include "runtime/device/StreamDevice.h"
#include "runtime/start/Run.h"
#include "runtime/transport/Deadline.h"
#include "runtime/transport/Presence.h"
#include "runtime/transport/Told.h"
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <latch>
#include <malloc.h>
#include <thread>

namespace pp {
namespace {

/// True unless mpirun has started this process as another rank than 0; known before MPI starts.
bool speaksBeforeMpi() {
  const char *rank = launchedAs();
  return !rank || strcmp(rank, "0") == 0;
}

/// Reports an error before MPI starts. If rank 0 has the same error, rank 0 reports it, and mpirun ends the others
/// before their turn.
int sayBeforeMpi(const Status &status, bool speaks) {
  if (speaks)
    return say(status);
  constexpr int first = 4000, step = 50, most = 50; // ms: longer than mpirun takes on a busy machine
  std::this_thread::sleep_for(std::chrono::milliseconds(first + step * std::min(atoi(launchedAs()), most)));
  return say(Status(status.code(), text("rank ", launchedAs(), ": ", status.message())));
}

#ifdef PP_WITH_NCCL
const char *const linkedTransports = "nccl, mpi, threads (--in-process)";
#elif defined(PP_WITH_MPI)
const char *const linkedTransports = "mpi, threads (--in-process)";
#else
const char *const linkedTransports = "threads (--in-process)";
#endif

Status printInfo(Emitted &emitted) {
  const Program &program = emitted.program();
  printf("pp          %s\nprogram     %s\nmodel       %s, %lld parameters, vocabulary %lld, %s\n"
         "schedule    %s on %s\n",
         version(), program.name.c_str(), program.model.c_str(), static_cast<long long>(program.parameters),
         static_cast<long long>(program.vocab), program.precision.c_str(), program.schedule.c_str(),
         program.mesh.describe().c_str());
  printf("a step      %s, %.3f GFLOP\ntransports  %s\n", program.stepText().c_str(), program.flopsPerStep * 1e-9,
         linkedTransports);
  if (std::string attention = Kernels::attention(); !attention.empty())
    printf("attention   %s\n", attention.c_str());
  WeightLayout layout;
  layout.adapters = program.adapts();
  std::vector<int64_t> copied;
  PP_TRY(copyBytes(emitted, layout, copied));
  printf("checkpoint  --save-every copies %lld bytes on a rank, at most\n",
         static_cast<long long>(*std::max_element(copied.begin(), copied.end())));
  printf("rank  planned peak B    arena B  scratch B   units  messages  weights      ops\n");
  std::vector<const RankProgram *> programs;
  PP_TRY(emitted.all(programs));
  for (const RankProgram *its : programs)
    printf("%4d %15lld %10lld %10lld %7zu %9zu %8zu %8zu\n", its->rank, static_cast<long long>(its->plannedPeak()),
           static_cast<long long>(its->arenaBytes), static_cast<long long>(its->plannedScratch()), its->stepUnits(),
           its->stepMessages(), its->weights.size(), its->ops.size());
  return {};
}

int startMpi(Emitted &emitted, [[maybe_unused]] const Options &options) {
#ifdef PP_WITH_MPI
  return runMpi(emitted, options);
#else
  return say(invalid("`", emitted.program().name, "` was linked without MPI; run it alone with --in-process"));
#endif
}

int mainOf(int argc, char **argv) {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 1 << 20); // what is large goes back to the system when it is freed: no plan counts it then
#endif
  Options options;
  Emitted emitted;
  Status status = parseOptions({argv + 1, size_t(argc > 0 ? argc - 1 : 0)}, options);
  if (status.ok())
    status = emitted.open();
  if (status.ok() && emitted.program().target != linkedTarget())
    status = invalid("this program was compiled for `", emitted.program().target, "` and linked with the runtime of `",
                     linkedTarget(), "`; compile it with --target=", linkedTarget());
  if (status.ok())
    status = giveColumns(options, emitted.program(), emitted.columns());
  bool speaks = options.inProcess || speaksBeforeMpi();
  if (!status.ok())
    return sayBeforeMpi(status, speaks);
  if (options.help || options.info || options.version) {
    if (!speaks)
      return 0;
    if (options.version)
      printf("pp %s, target %s\n", version(), std::string(linkedTarget()).c_str());
    else if (options.help)
      fputs(helpText(emitted.program()).c_str(), stdout);
    else
      status = printInfo(emitted);
    return status.ok() ? 0 : say(status);
  }
  if (status = resolveWeights(emitted.program(), options); !status.ok())
    return sayBeforeMpi(status, speaks);
  if (!options.save.empty())
    keepSignals();
  if (!options.inProcess)
    return startMpi(emitted, options);
  std::unique_ptr<Driver> driver;
  if (status = openDriver(options, 0, driver); !status.ok())
    return say(status);
  return driver ? runStreams(emitted, options, *driver) : runThreads(emitted, options);
}

} // namespace

int say(const Status &status, const Mesh &mesh, int32_t device) {
  bool named = status.message().starts_with("rank ") || status.message().starts_with("device ") ||
               status.message().starts_with("deadlock ");
  return say(device <= 0 || named ? status : Status(status.code(), mesh.name(device) + ": " + status.message()));
}

int say(const Status &status) {
  std::string line = "pp: error: " + status.message() + "\n";
  fflush(stdout);
  fwrite(line.data(), 1, line.size(), stderr);
  return int(status.code());
}

int runThreads(Emitted &emitted, const Options &options) {
  const Mesh &mesh = emitted.program().mesh;
  std::shared_ptr<Meeting> meeting = makeMeeting(mesh.devices(), options.transport);
  std::vector<std::thread> threads;
  std::atomic<bool> told = false;
  std::latch allLeft(mesh.devices());
  for (int32_t number = 0; number < mesh.devices(); ++number)
    threads.emplace_back([&, number] {
      std::unique_ptr<Transport> transport = makeThreadTransport(meeting, number);
      std::unique_ptr<Device> device = makeHostDevice();
      Trainer trainer(emitted, options, *transport, *device, number);
      Outcome outcome = trainer.run();
      if (outcome.told)
        told = true;
      leave(*meeting, number, outcome.together && !outcome.mine ? Status() : outcome.status);
      allLeft.arrive_and_wait(); // others may still copy from or to what this rank has posted
    });
  for (std::thread &thread : threads)
    thread.join();
  int32_t failed = -1;
  Status status = firstFailure(*meeting, failed);
  return status.ok() ? (told ? endedEarly : 0) : say(status, mesh, failed);
}

int runStreams(Emitted &emitted, const Options &options, Driver &driver) {
  const Mesh &mesh = emitted.program().mesh;
  int32_t ranks = mesh.devices();
  Fibers fibers(ranks);
  bool timed = options.isTimed();
  StepGroup group(driver, &fibers, ranks, !options.noGraph && !timed);
  std::shared_ptr<StreamMeeting> meeting = makeStreamMeeting(ranks, driver, &fibers);
  bool told = false;
  Status status = fibers.run(
      [&](int32_t rank) {
        StreamDevice device(driver, group, timed);
        std::unique_ptr<Transport> transport =
            driver.check(makeStreamTransport(meeting, rank, device), device, rank, /*apart=*/false);
        Trainer trainer(emitted, options, *transport, device, rank);
        Outcome outcome = trainer.run();
        told |= outcome.told;
        leave(*meeting, rank);
        if (!outcome.status.ok() && (!outcome.together || outcome.mine))
          fibers.breakOff(rank, outcome.status);
      },
      [&] { return standstillOf(*meeting); });
  if (!status.ok())
    return say(status);
  return fibers.failure().ok() ? (told ? endedEarly : 0) : say(fibers.failure(), mesh, fibers.failed());
}

} // namespace pp

int main(int argc, char **argv) {
  signal(SIGXFSZ, SIG_IGN); // a file that may grow no more is an error of who writes it
  int code = pp::mainOf(argc, argv);
  const char *why = fflush(stdout) != 0 ? strerror(errno) : ferror(stdout) ? "a line of it is lost" : nullptr;
  if (why && (code == 0 || code == pp::endedEarly))
    code = pp::say(pp::refused("what the run says cannot be written to standard output: ", why));
#ifdef PP_WITH_MPI
  pp::endWatched();
#endif
  return code;
}
