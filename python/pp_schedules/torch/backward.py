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
from torch.autograd.graph import GradientEdge


def ordered(roots):
    """All nodes behind `roots`; each stands behind those that it leads to."""
    seen, order, todo = set(), [], [(root, False) for root in roots]
    while todo:
        node, done = todo.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            todo.append((node, True))
            todo.extend((other, False) for other, _ in node.next_functions if other is not None and other not in seen)
    return order


def leaf_of(parameter):
    """The node that accumulates a parameter's gradient."""
    return parameter.view_as(parameter).grad_fn.next_functions[0][0]


class Pending:
    """What I leaves for W. `roots` are the edges of outputs; `dinputs` has a gradient, or None, for each input."""

    def __init__(self, roots, seeds, inputs, parameters):
        with torch.enable_grad():
            leaf = {leaf_of(p): number for number, p in enumerate(parameters) if p.requires_grad}
        self.leaf = {number: node for node, number in leaf.items()}
        users = self._users([root.node for root in roots], leaf, len(parameters))
        edges = [GradientEdge(node, i) for node, _ in users for i in range(len(node._input_metadata))]
        owners = [number for number, (node, _) in enumerate(users) for _ in node._input_metadata]
        wanted = [x for x in inputs if x.requires_grad]
        got = torch.autograd.grad(roots, wanted + edges, seeds, retain_graph=True, allow_unused=True) \
            if wanted or edges else []
        found = dict(zip(map(id, wanted), got))
        self.dinputs = [found.get(id(x)) for x in inputs]
        self.jobs = [(node, children, []) for node, children in users]
        for owner, edge, gradient in zip(owners, edges, got[len(wanted):]):
            if gradient is not None:
                self.jobs[owner][2].append((edge, gradient))

    def _users(self, roots, leaf, count):
        """[node, [(child, its output, weight)]]. A chain of nodes with one input and one user, such as a transpose, is
        part of the weight; a node of it that has two users is a user itself, or its graph would run twice."""
        chain, users, self.ways = {}, [], [0] * count
        order = ordered(roots)
        parents = collections.Counter(other for node in order for other, _ in node.next_functions if other is not None)
        for node in order:
            nexts = [(other, place) for other, place in node.next_functions if other is not None]
            children = [(other, place, chain[other]) for other, place in nexts if other in chain]
            if node in leaf:
                chain[node] = leaf[node]
            elif len(nexts) == 1 and children and parents[node] == 1:
                chain[node] = children[0][2]
            elif children:
                users.append((node, children))
                for _, _, weight in children:
                    self.ways[weight] += 1
        return users

    def weights(self, add):
        """Calls `add(number of the weight, gradient)` for every contribution."""
        shared = collections.defaultdict(list)     # leaves that several users take directly
        for node, children, gradients in self.jobs:
            for child, _, weight in children:
                if self.ways[weight] > 1 and child is self.leaf[weight] and gradients:
                    shared[weight].append((node, gradients))
        for weight, jobs in shared.items():
            add(weight, self._together(weight, jobs))
        for _, children, gradients in self.jobs:
            once = [self.ways[weight] == 1 for _, _, weight in children]
            ends = [(GradientEdge(self.leaf[weight], 0) if alone else GradientEdge(child, place), weight)
                    for alone, (child, place, weight) in zip(once, children)
                    if alone or child is not self.leaf[weight]]
            if not gradients or not ends:
                continue
            made = torch.autograd.grad([edge for edge, _ in gradients], [end for end, _ in ends],
                                       [gradient for _, gradient in gradients], allow_unused=True)
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
    def forward(ctx, x, weight, bias, queue):
        ctx.save_for_backward(x, weight)
        ctx.parameter, ctx.queue, ctx.bias = weight, queue, bias is not None and bias.requires_grad
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        ctx.queue.append((ctx.parameter, x, dy))   # what a checkpoint gives back of a weight is another object
        rows = dy.reshape(-1, dy.shape[-1])
        return dy @ weight if ctx.needs_input_grad[0] else None, None, rows.sum(0) if ctx.bias else None, None


class Linears(torch.overrides.TorchFunctionMode):
    """Turns each `linear` of a Parameter into one whose weight's gradient waits in a queue."""

    def __init__(self):
        super().__init__()
        self.queue = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.linear and len(args) > 1 and isinstance(args[1], torch.nn.Parameter) and \
                args[1].requires_grad and torch.is_grad_enabled():
            return Linear.apply(args[0], args[1], args[2] if len(args) > 2 else (kwargs or {}).get("bias"), self.queue)
        return func(*args, **(kwargs or {}))

    def weights(self, numbers, add):
        """`numbers`: of a weight's id its place among the parameters."""
        with torch.no_grad():
            for weight, x, dy in self.queue:
                add(numbers[id(weight)], dy.reshape(-1, dy.shape[-1]).t() @ x.reshape(-1, x.shape[-1]))
        self.queue.clear()
