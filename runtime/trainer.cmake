# The sources of the trainer: everything of the runtime that is not a kernel.
set(PP_TRAINER_SOURCES Main.cpp Trainer.cpp Program.cpp Options.cpp Tokens.cpp SafeTensors.cpp Weights.cpp
    Checkpoint.cpp Trace.cpp Profile.cpp Abi.cpp Presence.cpp MpiCollective.cpp TransportMpi.cpp TransportThreads.cpp)
