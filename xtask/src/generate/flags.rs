//! The flags and feature gates of Kubernetes' components.

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::Facts;
use super::facts::{array, text, texts};

/// One section per component, one line per flag: name, type, default, attributes and the section of `--help`.
pub fn generate(facts: &Facts) -> anyhow::Result<String> {
    let document = facts.json("flags.json")?;
    let components = document["components"].as_object().context("no `components` in flags.json")?;
    let mut lines = Vec::new();
    for (component, flags) in components {
        lines.push(format!("[{component}]"));
        let mut rows: Vec<(&str, String)> = Vec::new();
        for flag in flags.as_array().context("the flags of a component are no list")? {
            rows.push((text(flag, "name")?, line(flag)?));
        }
        rows.sort_by(|left, right| left.0.cmp(right.0));
        lines.extend(rows.into_iter().map(|(_, line)| line));
    }
    Ok(lines.join("\n") + "\n")
}

fn line(flag: &Value) -> anyhow::Result<String> {
    let mut attributes = Vec::new();
    for name in ["deprecated", "hidden"] {
        if flag[name].as_bool().unwrap_or(false) {
            attributes.push(name.to_owned());
        }
    }
    attributes.extend(flag["shorthand"].as_str().map(|letter| format!("-{letter}")));
    let section = flag["section"].as_str().unwrap_or_default();
    let columns =
        [text(flag, "name")?, text(flag, "type")?, &default(&flag["default"])?, &attributes.join(" "), section];
    Ok(columns.join("\t"))
}

/// A default as it would be typed.
fn default(value: &Value) -> anyhow::Result<String> {
    Ok(match value {
        Value::Null => String::new(),
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => value.as_i64().map_or_else(|| value.to_string(), |whole| whole.to_string()),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(default).collect::<anyhow::Result<Vec<_>>>()?.join(","),
        Value::Object(map) if map.is_empty() => String::new(),
        Value::Object(_) => bail!("a default is a map: {value}"),
    })
}

/// One line per feature gate: name, stage, default, whether it is locked, and the components that ask for it.
pub fn gates(facts: &Facts) -> anyhow::Result<String> {
    let document = facts.json("feature-gates.json")?;
    let mut lines = Vec::new();
    for gate in array(&document, "gates")? {
        let flag = |name: &str| gate[name].as_bool().with_context(|| format!("no `{name}` in {gate}"));
        let default = if flag("default")? { "on" } else { "off" };
        let locked = if flag("lockToDefault")? { "locked" } else { "free" };
        let users = texts(gate, "usedBy").join(",");
        lines.push([text(gate, "name")?, text(gate, "stage")?, default, locked, &users].join("\t"));
    }
    lines.sort();
    Ok(lines.join("\n") + "\n")
}

/// The configuration files of the node's components; those of others are read by these components themselves.
const CONFIGURATIONS: [&str; 2] = ["KubeletConfiguration", "KubeProxyConfiguration"];

/// One section per kind of configuration file, one line per field: its path and type.
pub fn fields(facts: &Facts) -> anyhow::Result<String> {
    let document = facts.json("config-kinds.json")?;
    let mut lines = Vec::new();
    for kind in array(&document, "kinds")?
        .iter()
        .filter(|kind| CONFIGURATIONS.contains(&kind["kind"].as_str().unwrap_or_default()))
    {
        lines.push(format!("[{}]\t{}", text(kind, "kind")?, text(kind, "apiVersion")?));
        let mut own = Vec::new();
        flatten(&document["types"], text(kind, "type")?, "", &mut own)?;
        own.sort();
        lines.append(&mut own);
    }
    Ok(lines.join("\n") + "\n")
}

/// One section per configuration file of the API server, one line per field. `[]` and `{}` are elements of lists and maps.
pub fn server_fields(facts: &Facts) -> anyhow::Result<String> {
    let document = facts.json("config-kinds.json")?;
    let mut lines = Vec::new();
    for kind in array(&document, "kinds")?.iter().filter(|kind| kind["component"] == "kube-apiserver") {
        lines.push(format!("[{}]\t{}", text(kind, "kind")?, text(kind, "apiVersion")?));
        let mut own = Vec::new();
        flatten_elements(&document["types"], text(kind, "type")?, "", &mut own)?;
        lines.append(&mut own);
    }
    Ok(lines.join("\n") + "\n")
}

fn flatten_elements(types: &Value, name: &str, prefix: &str, lines: &mut Vec<String>) -> anyhow::Result<()> {
    let fields = types[name].as_object().with_context(|| format!("no type {name} in config-kinds.json"))?;
    for (field, described) in fields {
        let described = described.as_str().unwrap_or_default().split(' ').next().unwrap_or_default();
        let type_name = described.trim_start_matches('*');
        let (mut element, mut path) = (type_name, format!("{prefix}{field}"));
        loop {
            if let Some(inner) = element.strip_prefix("[]") {
                element = inner.trim_start_matches('*');
                path.push_str("[]");
            } else if let Some((_, inner)) = element.strip_prefix("map[").and_then(|rest| rest.split_once(']')) {
                element = inner.trim_start_matches('*');
                path.push_str("{}");
            } else {
                break;
            }
        }
        match types[element].is_object() {
            true => flatten_elements(types, element, &format!("{path}."), lines)?,
            false => lines.push(format!("{prefix}{field}\t{type_name}")),
        }
    }
    Ok(())
}

/// The fields of a type, those of nested types by their path.
fn flatten(types: &Value, name: &str, prefix: &str, lines: &mut Vec<String>) -> anyhow::Result<()> {
    let fields = types[name].as_object().with_context(|| format!("no type {name} in config-kinds.json"))?;
    for (field, described) in fields {
        let described = described.as_str().unwrap_or_default().split(' ').next().unwrap_or_default();
        let type_name = described.trim_start_matches('*');
        match types[type_name].is_object() {
            true => flatten(types, type_name, &format!("{prefix}{field}."), lines)?,
            false => lines.push(format!("{prefix}{field}\t{type_name}")),
        }
    }
    Ok(())
}
