# The `nn` dialect: its ops, their interfaces, their derivatives.
pp_tablegen(NnOps.td Nn OPS INTERFACES DIALECT nn)
list(APPEND PP_DIALECT_SOURCES Nn.cpp NnAttention.cpp NnBytes.cpp NnDerivatives.cpp NnElementwise.cpp NnFused.cpp
     NnLinear.cpp NnLoss.cpp NnNorms.cpp NnPartialDerivatives.cpp)
list(APPEND PP_DIALECT_GEN pp-Nn-gen)
