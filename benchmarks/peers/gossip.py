"""Gossip in gossipy, one process: `python gossip.py DATA.npz CLIENTS ROUNDS STEPS`, in an environment of its own.

Each round every node sends its model to one neighbour on a ring, which merges it and takes an epoch of STEPS steps."""

import sys

import numpy as np
import torch
from gossipy import set_seed
from gossipy.core import AntiEntropyProtocol, CreateModelMode, StaticP2PNetwork
from gossipy.data import DataDispatcher
from gossipy.data.handler import ClassificationDataHandler
from gossipy.model.handler import TorchModelHandler
from gossipy.model.nn import TorchMLP
from gossipy.node import GossipNode
from gossipy.simul import GossipSimulator

ROUND = 100  # units of simulated time


def main(data: str, clients: int, rounds: int, steps: int) -> None:
    torch.set_num_threads(1)
    set_seed(0)
    with np.load(data) as file:
        x, y = (torch.tensor(np.concatenate([file[f"{part}{node}"] for node in range(clients)])) for part in "xy")
    dispatcher = DataDispatcher(ClassificationDataHandler(x, y, test_size=0), n=clients, eval_on_user=False)
    ring = np.roll(np.eye(clients), 1, axis=1) + np.roll(np.eye(clients), -1, axis=1)
    handler = TorchModelHandler(
        net=TorchMLP(64, 10, (32,)),
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": 0.1},
        criterion=torch.nn.functional.cross_entropy,
        batch_size=-(-len(x) // (clients * steps)),
        create_model_mode=CreateModelMode.MERGE_UPDATE,
    )
    nodes = GossipNode.generate(dispatcher, StaticP2PNetwork(clients, ring), handler, round_len=ROUND, sync=True)
    simulator = GossipSimulator(nodes, dispatcher, delta=ROUND, protocol=AntiEntropyProtocol.PUSH)
    simulator.init_nodes(seed=0)
    simulator.start(n_rounds=rounds)
    with np.load(data) as file, torch.no_grad():
        x, y = torch.tensor(file["x"]), torch.tensor(file["y"])
    models = [node.model_handler.model for node in simulator.nodes.values()]
    print(f"accuracy {np.mean([float((model(x).argmax(1) == y).float().mean()) for model in models]):.4f}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
