// Attributes of the `nn` dialect: how a model declares a weight, and the dropout of an attention's weights.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_DIALECT_NNATTRS_TD
#define PP_DIALECT_NNATTRS_TD

include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/EnumAttr.td"
include "mlir/IR/OpBase.td"

def Nn_Dialect : Dialect {
  let name = "nn";
  let cppNamespace = "::pp::nn";
  let summary = "what a task computes: tensors in, tensors out, no memory";
  let description = [{
    Forward ops are what a model is written in; backward and update ops mirror the kernels of `runtime/Pp.h` one to one.
    All are pure. An op that adds to a tensor in place takes it as `acc`, tied to its result: both are one buffer.
    Activations are [batch, length, width]; `e` is their element type, `acc` the type of sums: f64 for f64, else f32. A
    function of the dialect is a part of a model. Its arguments are values, or data (`nn.data`: tokens, targets, source,
    or a column of the dataset, which has the number `nn.column`), or weights (`nn.weight`), or statistics of the shards
    of a loss (`nn.stats`). `nn.adapter`: the weight was added beside a weight of the model. `nn.rows`: the value is a
    run of the rows of all sequences. `nn.per_layer`: the function stands for one layer of each piece that names it. If
    layers have several kinds, `nn.part` is the name of the part whose kind it is, and `nn.layers` are its layers.
    `nn.whole`: every device of the axis `tensor` has all of the part's weights. `nn.again` and `nn.attention` are the
    part's own ones, if they differ from the mesh's.
  }];
  let dependentDialects = ["::mlir::arith::ArithDialect", "::mlir::math::MathDialect"];
  let usePropertiesForAttributes = 0;
  let hasOperationAttrVerify = 1;
  let hasRegionArgAttrVerify = 1;
  let useDefaultAttributePrinterParser = 1;
  let extraClassDeclaration = [{ void registerAttributes(); }];
}

def Nn_Init : I32EnumAttr<"Init", "how a weight begins", [
  I32EnumAttrCase<"normal", 0>, I32EnumAttrCase<"zero", 1>, I32EnumAttrCase<"one", 2>,
  I32EnumAttrCase<"uniform", 3>]> {
  let cppNamespace = "::pp::nn";
}

def Nn_Stored : I32EnumAttr<"Stored", "how checkpoints store a weight", [
  I32EnumAttrCase<"plain", 0>, I32EnumAttrCase<"transposed", 1>, I32EnumAttrCase<"row", 2>,
  I32EnumAttrCase<"alternate", 3>, I32EnumAttrCase<"column", 4>]> {
  let cppNamespace = "::pp::nn";
}

def Nn_Axis : I32EnumAttr<"Axis", "along what the devices of a program lie; those of one rank not along `pipeline`", [
  I32EnumAttrCase<"tensor", 0>, I32EnumAttrCase<"context", 1>, I32EnumAttrCase<"data", 2>,
  I32EnumAttrCase<"pipeline", 3>, I32EnumAttrCase<"expert", 4>, I32EnumAttrCase<"copies", 5>]> {
  let cppNamespace = "::pp::nn";
}

def Nn_ExchangeKind : I32EnumAttr<"ExchangeKind", "what devices of a rank make together inside a body", [
  I32EnumAttrCase<"all_reduce", 0>, I32EnumAttrCase<"all_gather", 1>, I32EnumAttrCase<"reduce_scatter", 2>,
  I32EnumAttrCase<"all_to_all", 3>]> {
  let cppNamespace = "::pp::nn";
}

def Nn_AxesAttr : AttrDef<Nn_Dialect, "Axes"> {
  let mnemonic = "axes";
  let summary = "axes of the mesh along which devices do something together or differ: `#nn.axes<tensor>`";
  let description = [{
    Devices along `expert` have different experts, those along `copies` the same: together they are those along
    `context` and `data`.
  }];
  let parameters = (ins ArrayRefParameter<"::pp::nn::Axis">:$axes);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    /// `tensor`, or `tensor, context`.
    std::string str() const;
  }];
}

def Nn_SectionsAttr : AttrDef<Nn_Dialect, "Sections"> {
  let mnemonic = "sections";
  let summary = "for whose experts there are rows: a section for each of `devices`, and in it `most` rows of a token";
  let description = [{
    With `capacity` f a section has at most f times the rows that it gets if all sections are chosen equally often. More
    choices are dropped. `#nn.sections<4 most 2>`, `#nn.sections<4 most 2 capacity 1.25>`.
  }];
  let parameters = (ins "int64_t":$devices, "int64_t":$most, OptionalParameter<"::mlir::FloatAttr">:$capacity);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    /// Of a section, for so many tokens with `top` choices each.
    int64_t rows(int64_t tokens, int64_t top) const;
    /// Of all sections how many are rows of choices, if each section is chosen equally often.
    double filled(int64_t top) const;
  }];
}

def Nn_CutAttr : AttrDef<Nn_Dialect, "Cut"> {
  let mnemonic = "cut";
  let summary = "how a weight is cut over the devices of the axis `tensor`";
  let description = [{
    Dimension `dim` of the `whole` tensor is cut in equal pieces. The last pieces may go beyond its end; they hold 0
    there for ever. `runs`: the dimension has so many equal runs. Each run is cut, and a device has its piece of each.
    `copies`: so many neighbours have the same piece. `#nn.cut<[64, 192] dim 1 runs 3>`, `#nn.cut<[64, 16] dim 1 copies
    2>`.
  }];
  let parameters = (ins ArrayRefParameter<"int64_t">:$whole, "int64_t":$dim, "int64_t":$runs, "int64_t":$copies);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
}

def Nn_WeightAttr : AttrDef<Nn_Dialect, "Weight"> {
  let mnemonic = "weight";
  let summary = "how a model declares a weight";
  let description = [{
    `name` is the model's; `as` that of checkpoints, with `{l}` for the layer and `{k}` for its number among the layers
    of its kind; if it is empty the name is made of part, layer and `name`. `deviation` is that of `normal`,
    and the bound of `uniform`.
    `stored`: `transposed` where the checkpoint has [out, in], or [experts, out, in], and we [in, out]; `row` where it
    has [1, n] and we [n]; `alternate` where columns of our halves take turns in it. `shared`: all parts that declare
    it have one.
    `cut`: a device has a piece of it, and the tensors that hold it have the piece's shape. `steer`: it is a bias of
    routers, which no gradient changes, but a rate by the sign of how often its expert was chosen. `terms`: each device
    along `tensor` has all of it and a term of its gradient, and they are summed once a step. `experts`: the first
    dimension is cut over so many devices along `expert`, and this is the piece of one.
    `#nn.weight<"w" as "h.{l}.w" normal 2.0e-2 transposed>`, `#nn.weight<"gain" one>`, `#nn.weight<"wte" as "wte"
    shared>`.
  }];
  let parameters = (ins "::mlir::StringAttr":$name, "::mlir::StringAttr":$as, "::pp::nn::Init":$init,
                        "::mlir::FloatAttr":$deviation, "::pp::nn::Stored":$stored, "bool":$shared,
                        OptionalParameter<"::pp::nn::CutAttr">:$cut, OptionalParameter<"::mlir::FloatAttr">:$steer,
                        "bool":$terms, DefaultValuedParameter<"int64_t", "1">:$experts);
  let builders = [AttrBuilder<(ins "::mlir::StringAttr":$name, "::mlir::StringAttr":$as, "::pp::nn::Init":$init,
                                   "::mlir::FloatAttr":$deviation, "::pp::nn::Stored":$stored,
                                   "bool":$shared), [{
    return $_get($_ctxt, name, as, init, deviation, stored, shared, CutAttr(), ::mlir::FloatAttr(),
                 /*terms=*/false, /*experts=*/1);
  }]>];
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    /// The same but for what is given.
    WeightAttr withCut(CutAttr cut) const;
    WeightAttr withTerms() const;
    WeightAttr withSteer(::mlir::FloatAttr rate) const;
    WeightAttr withExperts(int64_t devices) const;
  }];
}

def Nn_DropoutAttr : AttrDef<Nn_Dialect, "Dropout"> {
  let mnemonic = "dropout";
  let summary = "dropout of the weights of an attention";
  let description = [{
    `rate` of them are 0; `site` and `sites` are as in `nn.dropout`; a whole sequence has `length` tokens.
    `#nn.dropout<1.0e-01 site 1 of 3 in 1024>`, and once the layer is known `#nn.dropout<1.0e-01 site 4 in 1024>`.
    `heads_by`: each device along these axes has the heads behind those of the device before it; behind the rest,
    `heads over <tensor>`.
  }];
  let parameters = (ins "::mlir::FloatAttr":$rate, "int64_t":$site, "int64_t":$sites, "int64_t":$length,
                        OptionalParameter<"::pp::nn::AxesAttr">:$heads_by);
  let builders = [AttrBuilder<(ins "::mlir::FloatAttr":$rate, "int64_t":$site, "int64_t":$sites, "int64_t":$length), [{
    return $_get($_ctxt, rate, site, sites, length, AxesAttr());
  }]>];
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
}

#endif // PP_DIALECT_NNATTRS_TD
