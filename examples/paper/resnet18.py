"""torchvision's ResNet-18."""

from torch import nn
from torchvision.models import resnet18


def make_model(shape, outputs, groups=0, small=False):
    """With ``groups`` it has group norm in place of batch norm, whose running means belong to one client's data. With
    ``small`` nothing of a picture's size is lost before the first block: for pictures of a few pixels."""
    norm = (lambda channels: nn.GroupNorm(groups, channels)) if groups else nn.BatchNorm2d
    model = resnet18(num_classes=outputs, norm_layer=norm)
    if small:
        model.conv1 = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    elif shape[0] != 3:
        model.conv1 = nn.Conv2d(shape[0], 64, 7, stride=2, padding=3, bias=False)
    return model
