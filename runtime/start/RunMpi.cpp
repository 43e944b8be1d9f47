// Runs this process as one rank under mpirun: on this CPU, or on a device of this machine.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/device/StreamDevice.h"
#include "runtime/start/Agreement.h"
#include "runtime/start/Run.h"
#include "runtime/transport/Presence.h"
#include "runtime/transport/Told.h"
#include <cstdlib>

namespace pp {
namespace {

/// The number of this process on its machine.
int32_t localNumber(int32_t rank) {
  for (const char *name : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"})
    if (const char *local = getenv(name))
      return atoi(local);
  return rank;
}

/// The device and transport of one rank; `group` and `driver` are null on this CPU.
struct Place {
  std::unique_ptr<Driver> driver;
  std::unique_ptr<StepGroup> group;
  std::unique_ptr<Device> device;
  std::unique_ptr<Transport> transport;
};

#ifdef PP_WITH_NCCL
constexpr bool hasNccl = true;
#else
constexpr bool hasNccl = false;
#endif

Status makePlace([[maybe_unused]] Emitted &emitted, const Options &options, int32_t rank, Place &place) {
  PP_TRY(openDriver(options, localNumber(rank), place.driver));
  if (options.carrier >= Carrier::Nccl && !hasNccl)
    return invalid("this program was not linked with NCCL; it has `--transport mpi` and `threads`");
  if (!place.driver) {
    place.device = makeHostDevice();
    return {};
  }
  // A message over MPI comes when the host asks for it, so it cannot be part of a graph.
  bool isNccl = hasNccl && options.carrier != Carrier::Mpi;
  if constexpr (hasNccl)
    if (isNccl && options.carrier != Carrier::Copies)
      PP_TRY(shareMultiprocessors(emitted, *place.driver, rank));
  place.group =
      std::make_unique<StepGroup>(*place.driver, nullptr, 1, isNccl && !options.noGraph && !options.isTimed());
  auto device = std::make_unique<StreamDevice>(*place.driver, *place.group, options.isTimed());
  std::unique_ptr<Transport> mpi = std::move(place.transport);
  if constexpr (hasNccl)
    if (isNccl)
      place.transport = makeNcclTransport(std::move(mpi), options.transport, emitted, *place.driver, *device, rank,
                                          options.carrier == Carrier::Copies);
  if (!isNccl)
    place.transport = makeStagedTransport(std::move(mpi), *place.driver, *device, rank);
  place.transport = place.driver->check(std::move(place.transport), *device, rank, /*apart=*/true);
  place.device = std::move(device);
  return {};
}

/// Warns if devices of `tensor` are on several machines: they exchange values inside units, and would often wait for
/// the network.
void warnOfMachines(const Mesh &mesh) {
  auto devices = mesh.parted(Axis::Tensor, machines());
  if (!devices)
    return;
  std::string line = text("pp: warning: ", mesh.name(devices->first), " and ", mesh.name(devices->second),
                          " are on different machines, and exchange values inside every unit; start a multiple of ",
                          mesh.size(Axis::Tensor), " devices on each machine, with `tensor` first in `order`\n");
  fwrite(line.data(), 1, line.size(), stderr);
}

} // namespace

int runMpi(Emitted &emitted, const Options &options) {
  int32_t rank = 0;
  Place place;
  const Mesh &mesh = emitted.program().mesh;
  Status status = startMpi(options.transport, rank);
  if (status.ok())
    status = checkAlike(emitted.program(), options);
  if (status.ok())
    status = makeMpiTransport(mesh, options.transport, rank, place.transport);
  if (!status.ok()) {
    int code = rank == 0 ? say(status) : int(status.code());
    finishMpi();
    return code;
  }
  if (rank == 0)
    warnOfMachines(mesh);
  Outcome outcome;
  {
    Transport &mpi = *place.transport;
    int32_t failed = -1;
    pp_status_t code = PP_OK;
    status = makePlace(emitted, options, rank, place);
    Status heard = mpi.agree(status, failed, code);
    if (heard.ok() && failed >= 0)
      outcome = {failed == rank ? status : Status(code, text(mesh.name(failed), " failed")), true, failed == rank};
    else if (!heard.ok())
      outcome = {heard, false, false};
    else
      outcome = Trainer(emitted, options, *place.transport, *place.device, rank).run();
  }
  if (outcome.status.ok() || outcome.together) {
    int code = outcome.told ? endedEarly : outcome.mine ? say(outcome.status, mesh, rank) : int(outcome.status.code());
    if (outcome.told)
      ignoreSignals();                  // mpirun ends the others when the first one ends with this code
    { Place ended = std::move(place); } // from its last member: the driver outlives what uses it
    finishMpi();
    return code;
  }
  if (claimMpiReport())
    say(outcome.status, mesh, rank);
  abortMpi(int(outcome.status.code()));
}

} // namespace pp
