"""torchvision's ResNet-18 with group norm in place of batch norm, whose running means belong to one client's data."""

from torch import nn
from torchvision.models import resnet18


def make_model(shape, outputs, groups=2):
    model = resnet18(num_classes=outputs, norm_layer=lambda channels: nn.GroupNorm(groups, channels))
    model.conv1 = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)  # images are small: none of their size is lost here
    model.maxpool = nn.Identity()
    return model
