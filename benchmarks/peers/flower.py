"""FedAvg in Flower's simulation: `python flower.py DATA.npz CLIENTS ROUNDS STEPS`, in an environment of its own."""

import sys

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

DATA, (CLIENTS, ROUNDS, STEPS) = sys.argv[1], map(int, sys.argv[2:])
BATCH, ALPHA = 32, 0.1


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def client_app(data: str, steps: int) -> ClientApp:
    app, shards = ClientApp(), {}

    @app.train()
    def train(message: Message, context: Context) -> Message:
        node = int(context.node_config["partition-id"])
        if node not in shards:
            torch.set_num_threads(1)
            with np.load(data) as file:
                shards[node] = torch.tensor(file[f"x{node}"]), torch.tensor(file[f"y{node}"])
        (x, y), net = shards[node], model()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(net.parameters(), lr=ALPHA)
        for _ in range(steps):
            batch = torch.randint(len(x), (BATCH,))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
        content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
        return Message(content=RecordDict(content), reply_to=message)

    return app


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    found = strategy.start(grid, ArrayRecord(model().state_dict()), num_rounds=ROUNDS)
    net = model()
    net.load_state_dict(found.arrays.to_torch_state_dict())
    with np.load(DATA) as file, torch.no_grad():
        right = net(torch.tensor(file["x"])).argmax(1) == torch.tensor(file["y"])
    print(f"accuracy {float(right.float().mean()):.4f}")


if __name__ == "__main__":
    run_simulation(server, client_app(DATA, STEPS), CLIENTS)
