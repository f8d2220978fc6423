"""`unstuck.check` on the objects and the first batch of healthy trainings finds nothing, not even advice."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import unstuck

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
Objects = tuple[Any, Any, Any, Any]
HEALTHY = Path(__file__).parents[2] / "examples" / "healthy"


def first(data: Any, size: int = 64, **options: Any) -> Any:
    return next(iter(torch.utils.data.DataLoader(data, batch_size=size, shuffle=True, **options)))


def adam(model: Any, rate: float = 3e-3) -> Any:
    return torch.optim.Adam(model.parameters(), lr=rate)


def classifier(model: Any, data: Any, size: int = 64, **loss: Any) -> Objects:
    return model, nn.CrossEntropyLoss(**loss), adam(model), first(data, size)


def autoencoder(example: ModuleType) -> Objects:
    model = example.Autoencoder()
    signals = first(example.Signals(128, seed=1))
    return model, nn.MSELoss(), adam(model), (signals, signals)


def cnn_batchnorm(example: ModuleType) -> Objects:
    model = example.StripeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    return model, nn.CrossEntropyLoss(), optimizer, first(example.striped_images(128, seed=1), 32)


def contrastive(example: ModuleType) -> Objects:
    model, loss = example.Encoder(), example.InfoNCE(0.2)
    one, other = first(example.TwoViews(128))
    return model, lambda output, second: loss(output, model(second)), adam(model), (one, other)


def diffusion(example: ModuleType) -> Objects:
    model, scheduler = example.NoisePredictor(), example.NoiseScheduler()
    points, time = example.two_moons(64), torch.randint(0, example.NOISE_STEPS, (64,))
    noise = torch.randn_like(points)
    return model, F.mse_loss, adam(model), ((scheduler.add_noise(points, noise, time), time), noise)


def finetune_frozen_backbone(example: ModuleType) -> Objects:
    backbone = example.Backbone()
    example.pretrain(backbone)
    model = example.Classifier(backbone, classes=4)
    model.backbone.requires_grad_(False)
    model.train()
    model.backbone.eval()
    batch = first(example.tones(128, [1.5, 2.5, 4.0, 6.0], seed=2), 32)
    return model, F.cross_entropy, torch.optim.Adam(model.head.parameters(), lr=1e-2), batch


def gan_generator(example: ModuleType) -> Objects:
    generator, discriminator = example.Generator(), example.Discriminator()
    loss = nn.BCEWithLogitsLoss()
    real = torch.ones(64)
    return (
        generator,
        lambda fake, real: loss(discriminator(fake), real),
        adam(generator),
        (torch.randn(64, example.NOISE), real),
    )


def gan_discriminator(example: ModuleType) -> Objects:
    model = example.Discriminator()
    points = torch.cat([example.real_points(32), torch.randn(32, 2)])
    labels = torch.cat([torch.ones(32), torch.zeros(32)])
    return model, nn.BCEWithLogitsLoss(), adam(model), (points, labels)


def gpt(example: ModuleType) -> Objects:
    config = example.Config()
    model = example.GPT(config)
    generator = torch.Generator().manual_seed(1337)
    batch = example.get_batch(example.make_sums(4000, generator), config)
    return model, lambda output, _: output[1], example.configure_optimizer(model, config), (batch, batch[1])


def lbfgs(example: ModuleType) -> Objects:
    model = example.SurfaceNet()
    points, heights = example.surface(400, seed=1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    return model, nn.MSELoss(), optimizer, (points, (heights - heights.mean()) / heights.std())


def lora(example: ModuleType) -> Objects:
    ids = example.sequences(64, seed=1)
    labels = ((ids % 2 == 0).sum(1) > example.LENGTH // 2).long()
    data = torch.utils.data.TensorDataset(ids, labels)
    model = example.Encoder(classes=2)
    loader = torch.utils.data.DataLoader(data, batch_size=32)
    example.fit(model, loader, adam(model), epochs=1)
    model = example.add_adapters(model, classes=2)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return model, F.cross_entropy, torch.optim.Adam(trainable, lr=5e-3), (ids[:32], labels[:32])


def lstm(example: ModuleType) -> Objects:
    text = example.make_text(sentences=100, seed=0)
    codes = {character: code for code, character in enumerate(sorted(set(text)))}
    model = example.CharLSTM(len(codes), 64)
    batch = example.batch_of(torch.tensor([codes[character] for character in text]), 24, 32)
    return model, lambda out, target: F.cross_entropy(out.flatten(0, 1), target.flatten()), adam(model), batch


def mixed_precision_bf16(example: ModuleType) -> Objects:
    return classifier(example.Net(), example.clusters(512, torch.Generator().manual_seed(0)))


def mlp(example: ModuleType) -> Objects:
    return classifier(example.MLP(64), example.spirals(512, torch.Generator().manual_seed(0)))


def noisy_labels_small_lr_finetune(example: ModuleType) -> Objects:
    truth = example.make_truth()
    return classifier(example.load_checkpoint(truth), example.answers(truth, 512))


def plateau_scheduler(example: ModuleType) -> Objects:
    model = example.ProductNet()
    return model, nn.MSELoss(), adam(model), first(example.products(256, seed=1))


def ppo(example: ModuleType) -> Objects:
    model = example.ActorCritic()
    states = example.Line().observe()
    chosen = torch.randint(0, 2, (len(states),))
    return (
        model,
        lambda output, chosen: F.mse_loss(output[1], torch.randn(len(chosen))) - output[0].log_prob(chosen).mean(),
        adam(model),
        (states, chosen),
    )


def regression_tabular(example: ModuleType) -> Objects:
    features, prices = example.flats(256, torch.Generator().manual_seed(0))
    x, y = example.Standardiser(features)(features), example.Standardiser(prices)(prices)
    model = example.PriceNet(x.shape[1], 48)
    return model, nn.MSELoss(), adam(model), (x[:64], y[:64])


def resnet(example: ModuleType) -> Objects:
    model = example.ResNet()
    optimizer = torch.optim.SGD(example.decay_groups(model, 5e-4), lr=0.03, momentum=0.9)
    return model, F.cross_entropy, optimizer, first(example.Textures(64, seed=1), 32)


def rnn_clipping(example: ModuleType) -> Objects:
    model = example.Echo()
    return model, nn.MSELoss(), adam(model), example.echo_batch(32)


def seq2seq_padded(example: ModuleType) -> Objects:
    model = example.Seq2Seq()
    words, lengths, given, wanted = first(example.Words(64, seed=1), 32, collate_fn=example.collate)
    loss = nn.CrossEntropyLoss(ignore_index=example.PAD)
    return (
        model,
        lambda out, wanted: loss(out.reshape(-1, example.VOCABULARY), wanted.reshape(-1)),
        adam(model),
        ((words, lengths, given), wanted),
    )


def several_optimizers(example: ModuleType) -> Objects:
    model = example.Recommender()
    users, items, scores = first(example.ratings(512, seed=1), 128)
    return model, nn.MSELoss(), example.make_optimizers(model), ((users, items), scores)


def vae(example: ModuleType) -> Objects:
    images = example.bars(256, seed=0)
    model = example.VAE(images.mean(0))
    return (
        model,
        lambda output, images: example.negative_elbo(output[0], images, *output[1:]),
        adam(model),
        (images[:64], images[:64]),
    )


def vit(example: ModuleType) -> Objects:
    model = example.ViT()
    optimizer = torch.optim.AdamW(example.parameter_groups(model, 0.05), lr=2e-3)
    torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.05, total_iters=20)
    return model, nn.CrossEntropyLoss(), optimizer, first(example.patterns(128, seed=1), 24)


def warmup_cosine(example: ModuleType) -> Objects:
    model = example.Classifier()
    optimizer = torch.optim.AdamW(example.split_decay(model, 0.01), lr=3e-3)
    example.warmup_cosine(optimizer, 20, total=100)
    return model, nn.CrossEntropyLoss(), optimizer, first(example.sequences(256, seed=1), 32)


TRAININGS: dict[str, Callable[[ModuleType], Objects]] = {
    "accumulation": lambda example: classifier(example.Net(), example.rings(256, seed=1), 16),
    "autoencoder": autoencoder,
    "cnn_batchnorm": cnn_batchnorm,
    "contrastive": contrastive,
    "diffusion": diffusion,
    "finetune_frozen_backbone": finetune_frozen_backbone,
    "gan": gan_generator,
    "gan/discriminator": gan_discriminator,
    "gpt": gpt,
    "grad_scaler": lambda example: classifier(example.make_model(5), example.teacher_data(256, 5, seed=1)),
    "label_smoothing": lambda example: classifier(
        example.make_model(), example.Digits(256, noise=0.5, seed=1), label_smoothing=0.1
    ),
    "lbfgs": lbfgs,
    "lora": lora,
    "lstm": lstm,
    "mixed_precision_bf16": mixed_precision_bf16,
    "mlp": mlp,
    "noisy_labels_small_lr_finetune": noisy_labels_small_lr_finetune,
    "plateau_scheduler": plateau_scheduler,
    "ppo": ppo,
    "regression_tabular": regression_tabular,
    "resnet": resnet,
    "rnn_clipping": rnn_clipping,
    "seq2seq_padded": seq2seq_padded,
    "several_optimizers": several_optimizers,
    "vae": vae,
    "vit": vit,
    "warmup_cosine": warmup_cosine,
}


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, HEALTHY / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, name, module)
        spec.loader.exec_module(module)
    return module


FEW = ["accumulation", "cnn_batchnorm", "gan", "gpt", "vae"]
REST = [name for name in TRAININGS if name not in FEW]


@pytest.mark.parametrize("name", FEW + [pytest.param(name, marks=pytest.mark.slow) for name in REST])
def test_a_healthy_training_is_passed_over_in_silence(name: str) -> None:
    torch.manual_seed(0)
    report = unstuck.check(*TRAININGS[name](loaded(name.partition("/")[0])))
    assert report.diagnoses == (), str(report)
    assert not report.verdict.failures
