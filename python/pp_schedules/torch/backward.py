"""A backward in two halves for any module: I makes the gradients of a stage's inputs, W those of its weights.

`Pending`, for all graphs: autograd runs to the inputs and to the nodes that use a weight, its *users*, where the
arriving gradient is caught. W runs each user alone, for its weights. A weight with several users gets the sum over
them: each user is run to its own edge, so no gradient passes from one user to the next and counts twice.

`Linears`, for models of linears: only the products for the weights of linears wait for W; the gradients of what is
small are made in I, and all that I does not need any more is freed.
"""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import collections
import torch
from torch import nn
from torch.autograd.graph import GradientEdge


SEVERAL = -1                                       # edges that lead to a node


class Pending:
    """What I leaves for W. `roots` are the edges of outputs, `places` has of a weight's id its place among the
    parameters; `dinputs` has a gradient, or None, for each input."""
    __slots__ = ("leaf", "ways", "jobs", "dinputs")

    def __init__(self, roots, seeds, inputs, places):
        self.leaf, self.ways, self.jobs = {}, {}, []
        wanted = [x for x in inputs if x.requires_grad]
        edges, owners, count = list(wanted), [], len(wanted)
        self._users(roots, places, edges, owners)
        got = torch.autograd.grad(roots, edges, seeds, retain_graph=True, allow_unused=True) if edges else ()
        if count == len(inputs):
            self.dinputs = list(got[:count])
        else:
            found = dict(zip(map(id, wanted), got))
            self.dinputs = [found.get(id(x)) for x in inputs]
        for gradients, edge, gradient in zip(owners, edges[count:], got[count:]):
            if gradient is not None:
                gradients.append((edge, gradient))

    def _users(self, roots, places, edges, owners):
        """Finds the jobs (node, [(child, its output, weight)], level, gradients). A chain of nodes with one input and
        one user, such as a transpose, is part of the weight; a node of it that has two users is a user itself, or its
        graph would run twice. A user's level is the most users on a way from it to a leaf: two of one level do not
        reach each other. `edges` gets those where a gradient is caught, and `owners` the lists that get it.

        The first loop puts nodes behind those that they lead to; `entries` has the output of a node by which the only
        edge leads to it. This runs once a unit with cold caches, so it is one function, and it asks a node for little.
        """
        chain, level, order, entries, leaf, ways = {}, {}, [], {}, self.leaf, self.ways
        todo, heads = [], [root[0] for root in roots]
        for root in roots:
            entries[root[0]] = SEVERAL if root[0] in entries else root[1]
            todo.append((root[0], None))
        while todo:
            node, nexts = todo.pop()
            if nexts is not None:
                order.append((node, nexts))
            elif node not in level:
                level[node], nexts = 0, node.next_functions
                if nexts:
                    todo.append((node, nexts))
                    for other, place in nexts:
                        if other is not None:
                            entries[other] = SEVERAL if other in entries else place
                            if other not in level:
                                todo.append((other, None))
                else:
                    weight = places.get(id(getattr(node, "variable", None)))
                    if weight is not None:
                        chain[node], leaf[weight] = weight, node
        for node, nexts in order:
            high, count, children = 0, 0, None
            for other, place in nexts:
                if other is not None:
                    count += 1
                    if level[other] > high:
                        high = level[other]
                    if other in chain:
                        children = [] if children is None else children
                        children.append((other, place, chain[other]))
            if children is not None:
                entry = entries[node]
                if count == 1 and entry != SEVERAL and node not in heads:
                    chain[node] = children[0][2]
                else:
                    high += 1
                    for _, _, weight in children:
                        ways[weight] = ways.get(weight, 0) + 1
                    gradients = []
                    self.jobs.append((node, children, high, gradients))
                    for i in range(len(node._input_metadata)) if entry == SEVERAL else (entry,):
                        edges.append(GradientEdge(node, i))
                        owners.append(gradients)
            if high:
                level[node] = high

    def weights(self, add):
        """Calls `add(number of the weight, gradient)` for every contribution."""
        shared = collections.defaultdict(list)     # leaves that several users take directly
        levels = collections.defaultdict(lambda: ([], []))  # what runs at once: users of weights that have no other
        for node, children, level, gradients in self.jobs:
            ends, direct = [], {weight for child, _, weight in children if child is self.leaf[weight]}
            for child, place, weight in children if gradients else ():
                if self.ways[weight] == 1:
                    ends.append((GradientEdge(self.leaf[weight], 0), weight))
                elif weight not in direct:
                    ends.append((GradientEdge(child, place), weight))
            for weight in direct if gradients else ():
                if self.ways[weight] > 1:          # with what reaches the leaf by a chain from the same user
                    shared[weight].append((node, gradients))
            alone = all(self.ways[weight] == 1 for _, weight in ends)
            caught, into = levels[level if alone else node]
            caught += gradients
            into += ends
        for weight, jobs in shared.items():
            add(weight, self._together(weight, jobs))
        for caught, ends in levels.values():
            made = torch.autograd.grad([edge for edge, _ in caught], [end for end, _ in ends],
                                       [gradient for _, gradient in caught], allow_unused=True) if ends else ()
            for (end, weight), gradient in zip(ends, made):
                if gradient is not None:
                    add(weight, gradient if self.ways[weight] == 1 else torch.autograd.grad(
                        [end], [GradientEdge(self.leaf[weight], 0)], [gradient])[0])
        self.jobs = ()

    def _together(self, weight, jobs):
        """Runs all users of a leaf in one call; each is held to the gradient that I caught for it."""
        hooks = []
        try:
            for node, gradients in jobs:
                caught = {edge.output_nr: gradient for edge, gradient in gradients}
                fixed = tuple(caught.get(i) for i in range(len(node._input_metadata)))
                hooks.append(node.register_prehook(lambda _, fixed=fixed: fixed))
            edges = [pair for _, gradients in jobs for pair in gradients]
            return torch.autograd.grad([edge for edge, _ in edges], [GradientEdge(self.leaf[weight], 0)],
                                       [gradient for _, gradient in edges], retain_graph=True)[0]
        finally:
            for hook in hooks:
                hook.remove()


class Linear(torch.autograd.Function):
    """A linear whose backward queues the product for its weight."""

    @staticmethod
    def forward(ctx, x, weight, bias, linears):
        ctx.save_for_backward(x, weight)
        ctx.parameter, ctx.linears, ctx.queue = weight, linears, linears.queue
        ctx.bias = bias is not None and bias.requires_grad
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        rows, dweight = dy.reshape(-1, dy.shape[-1]), None
        if ctx.linears.backward:                   # what a checkpoint gives back of a weight is another object
            ctx.queue.append((ctx.parameter, x.detach(), dy))
        else:                                      # a gradient that the module itself asks for
            dweight = rows.t() @ x.reshape(-1, x.shape[-1])
        return dy @ weight if ctx.needs_input_grad[0] else None, dweight, rows.sum(0) if ctx.bias else None, None


class Linears:
    """The modules `nn.Linear` of a stage. While it is entered, the gradient of their weights waits in a queue.

    It stands before the forward of these modules alone, so other modules and other threads see nothing of it. A
    TorchFunctionMode would put Python in front of every operation of the stage, and a checkpoint runs its module again
    in a thread of autograd's, where no mode holds. Weights that are used in another way get their gradient in I.
    """

    def __init__(self, module):
        self.queue, self.backward = None, False
        self.found = [(part.__dict__, self._forward(part)) for part in module.modules() if self._fits(part)]

    @staticmethod
    def _fits(part):
        """Parametrized and quantized weights are no Parameters of the module's own, and complex ones are conjugated."""
        weight = part._parameters.get("weight")
        return (isinstance(part, nn.Linear) and type(part).forward is nn.Linear.forward and
                type(weight) is nn.Parameter and weight.is_floating_point() and "forward" not in part.__dict__)

    def _forward(self, part):
        parameters, plain = part._parameters, nn.functional.linear

        def forward(input):
            weight, bias = parameters["weight"], parameters["bias"]
            if weight.requires_grad and torch.is_grad_enabled() and not (
                    torch.is_autocast_enabled(input.device.type) or torch._C._are_functorch_transforms_active()):
                return Linear.apply(input, weight, bias, self)
            return plain(input, weight, bias)
        return forward

    def enter(self, queue, backward):
        """`queue`: what waits of one unit. `backward`: the driver's own backward runs."""
        self.queue, self.backward = queue, backward
        for names, forward in self.found:
            names["forward"] = forward

    def leave(self):
        self.queue, self.backward = None, False
        for names, _ in self.found:
            names.pop("forward", None)


def products(queue, places, add):
    """The gradients of weights that wait. `places`: of a weight's id its place among the parameters."""
    for weight, x, dy in queue:
        add(places[id(weight)], dy.reshape(-1, dy.shape[-1]).t() @ x.reshape(-1, x.shape[-1]), True)
    queue.clear()
