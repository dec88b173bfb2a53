"""From a config to one problem per MoE layer."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import LayerRole
from moe_core.ingest import aliases
from moe_core.ingest.activation import read_activation
from moe_core.ingest.columns import at
from moe_core.ingest.errors import IngestError, show
from moe_core.ingest.families import Family, family_of
from moe_core.ingest.layers import Layers, read_layers
from moe_core.ingest.overrides import has_no_experts, read_overrides
from moe_core.ingest.parts import has_experts, open_config
from moe_core.ingest.quant.read import read_quant
from moe_core.ingest.reader import Journal, Reader
from moe_core.ingest.routing import read_routing
from moe_core.ingest.sizes import Columns, read_shared, read_sizes, read_surroundings
from moe_core.ingest.source import Loaded, Source, load
from moe_core.ingest.values import IngestedModel, LayerGroup


def ingest(source: Source) -> IngestedModel:
    """The MoE layers of a model, as problems, from its Hugging Face configuration.

    `source` is the path of a ``config.json`` or of a folder with one (an ``hf_quant_config.json`` beside it is read
    too), a mapping with the content of a ``config.json``, or an in-memory ``transformers`` config. Nothing is fetched.

    Raises :class:`IngestError`, with everything that is wrong, when the source cannot be read, describes no MoE
    layer, lacks a size or contradicts itself.
    """
    loaded = load(source)
    journal = Journal()
    reader = open_config(loaded.config, journal)
    family = family_of(reader)
    _refuse(reader, family, loaded.name)
    layers = read_layers(reader, family)
    fields = _fields(reader, layers, family, loaded)
    _raise(journal, loaded.name)
    fields = {layer: own for layer, own in fields.items() if own["num_experts"] > 1}
    if not fields:
        _no_moe_layer(reader, layers)
    groups = _groups(layers, fields, journal)
    _raise(journal, loaded.name)
    return IngestedModel(
        name=loaded.name,
        model_type=_whole(reader).text(["model_type"]) or "",
        architectures=tuple(map(str, _whole(reader).sequence(["architectures"]) or ())),
        num_hidden_layers=layers.num_target,
        groups=groups,
        keys_read=journal.keys_read(),
        notes=tuple(journal.notes) + (() if family is None else family.notes),
    )


def _fields(reader: Reader, layers: Layers, family: Family | None, loaded: Loaded) -> dict[int, Columns]:
    """The fields of the problem of each layer with experts."""
    model = read_surroundings(reader) | read_quant(reader, layers, family, loaded.quant_file)
    own = read_overrides(reader, layers)
    common = {} if layers.moe and own.keys() >= set(layers.moe) else _experts(reader, layers, family)
    fields = {}
    for layer in layers.moe:
        keys = own.get(layer)
        if keys is None or not has_no_experts(keys):
            columns = model | (common if keys is None else _experts(keys, layers, family))
            fields[layer] = {name: at(column, layer) for name, column in columns.items()}
    return fields


def _experts(reader: Reader, layers: Layers, family: Family | None) -> Columns:
    sizes = read_sizes(reader, layers, family)
    return {
        **sizes,
        **read_shared(reader, layers, family, sizes["intermediate_size"]),
        **read_activation(reader, layers, family),
        **read_routing(reader, layers, family),
    }


def _refuse(reader: Reader, family: Family | None, name: str) -> None:
    """Raise for a config without experts, and for experts that are no MoE problem."""
    journal = reader.journal
    model = f"model_type {_whole(reader).text(['model_type']) or 'unknown'}"
    count = reader.find(aliases.NUM_EXPERTS, agree=False)
    if not has_experts(reader.sections[0]):
        journal.trouble(
            f"no MoE layer: {model} states no number of experts",
            f"one of {', '.join(aliases.NUM_EXPERTS)}, here or in a sub-config such as text_config",
            "a dense model has no MoE layers to resolve",
        )
    elif count is not None and count.value in (0, 1):
        journal.trouble(f"no MoE layer: {count.path} = {count.value} in {model}", "at least 2 experts")
    elif family is not None and family.refused:
        journal.trouble(f"{model}, which is no MoE problem: {family.refused}", "experts that are gated or plain MLPs")
    elif reader.boolean(["is_encoder_decoder"]):
        journal.trouble(
            f"an encoder-decoder model ({model}), whose two stacks both have experts",
            "a model with one stack of layers",
        )
    _raise(journal, name)


def _whole(reader: Reader) -> Reader:
    """A reader of the config as a whole, without the sub-config that holds the experts."""
    return Reader(reader.sections[-1:], reader.journal)


def _no_moe_layer(reader: Reader, layers: Layers) -> None:
    said = [f"{path} = {show(value)}" for path, value in reader.journal.values.items() if _is_about_layers(path)]
    reader.journal.trouble(
        f"keys of a MoE model, but no MoE layer among {layers.num_target} ({', '.join(said)})",
        "at least one layer with experts",
        "correct the keys that say which layers have experts",
    )


def _is_about_layers(path: str) -> bool:
    return any(word in path for word in ("layer", "dense", "sparse", "enable", "is_moe", "pattern", "num_experts"))


def _raise(journal: Journal, name: str) -> None:
    if journal.troubles:
        raise IngestError(name, tuple(journal.troubles))


def _groups(layers: Layers, fields: dict[int, Columns], journal: Journal) -> tuple[LayerGroup, ...]:
    """Layers with equal fields, together. Contradictions inside a problem become troubles."""
    alike: dict[tuple[LayerRole, tuple[tuple[str, Any], ...]], list[int]] = {}
    for layer, own in fields.items():
        alike.setdefault((layers.role(layer), tuple(sorted(own.items()))), []).append(layer)
    groups = []
    for (role, content), indices in alike.items():
        try:
            problem = MoEProblem(**dict(content))
        except ValidationError as error:
            for each in error.errors(include_url=False):
                where = ".".join(map(str, each["loc"]))
                message = each["msg"].removeprefix("Value error, ")
                text = f"{where}: {message}" if where else message
                journal.trouble(f"in layers {show(indices)}: {text}", "values that do not contradict each other")
        else:
            groups.append(LayerGroup(role=role, layers=tuple(indices), problem=problem))
    return tuple(groups)
