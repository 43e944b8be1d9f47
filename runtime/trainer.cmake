# The sources of the trainer: everything of the runtime that is not a kernel.
set(PP_TRAINER_SOURCES Main.cpp Version.cpp Trainer.cpp Program.cpp Options.cpp Tokens.cpp SafeTensors.cpp Weights.cpp
    Checkpoint.cpp DeviceHost.cpp Trace.cpp Profile.cpp Abi.cpp Meeting.cpp TransportThreads.cpp streams/Fibers.cpp
    streams/StreamDevice.cpp streams/TransportStreams.cpp streams/TransportChecked.cpp streams/RunStreams.cpp)
set(PP_MPI_SOURCES Presence.cpp MpiCollective.cpp TransportMpi.cpp RunMpi.cpp streams/TransportStaged.cpp)
