//! `cargo xtask generate --kubernetes DIR`: writes the tables that describe Kubernetes' API, from published facts.
//!
//! `DIR` holds what a Kubernetes API server publishes about itself: OpenAPI, discovery and the built-in roles, and the field
//! numbers of its protobuf messages. What is published nowhere in that form is kept by hand in `xtask/facts`.

mod facts;
mod flags;
mod kinds;
mod metrics;
mod policy;
mod types;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// A table that is part of the sources.
struct Table {
    path: &'static str,
    generate: fn(&Facts) -> anyhow::Result<String>,
}

const TABLES: &[Table] = &[
    Table { path: "crates/api/src/catalogue/kinds.txt", generate: kinds::generate },
    Table { path: "crates/api/src/catalogue/optional_kinds.txt", generate: kinds::optional },
    Table { path: "crates/api/src/schema/types.txt", generate: types::generate },
    Table { path: "crates/apiserver/src/bootstrap/policy.txt", generate: policy::generate },
    Table { path: "crates/component-flags/src/flags.txt", generate: flags::generate },
    Table { path: "crates/component-flags/src/gates.txt", generate: flags::gates },
    Table { path: "crates/component-flags/src/fields.txt", generate: flags::fields },
    Table { path: "crates/component-flags/src/server_fields.txt", generate: flags::server_fields },
    Table { path: "crates/metrics/src/kubernetes.txt", generate: metrics::generate },
    // Of the tables that were compiled in: a second run shows what the first one wrote.
    Table { path: "docs/flags.md", generate: |_| Ok(knarr_component_flags::document()) },
];

/// Where facts come from: the published ones and those kept by hand.
pub struct Facts {
    published: PathBuf,
    by_hand: PathBuf,
}

impl Facts {
    /// A published JSON document.
    fn json(&self, name: &str) -> anyhow::Result<serde_json::Value> {
        let path = self.published.join(name);
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is not JSON", path.display()))
    }

    /// A published JSON document about versions that are not served by default, kept without its prose in `facts/optional`.
    fn condensed(&self, name: &str) -> anyhow::Result<serde_json::Value> {
        let path = self.by_hand.join("optional").join(name);
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is not JSON", path.display()))
    }

    /// A table kept by hand: its lines without comments.
    fn by_hand(&self, name: &str) -> anyhow::Result<Vec<String>> {
        let path = self.by_hand.join(name);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect())
    }
}

/// Writes all tables, or with `check` only compares them with what is there.
pub fn run(root: &Path, published: PathBuf, check: bool) -> anyhow::Result<()> {
    let facts = Facts { published, by_hand: root.join("xtask/facts") };
    let mut stale = Vec::new();
    for table in TABLES {
        let path = root.join(table.path);
        let text = (table.generate)(&facts).with_context(|| format!("cannot generate {}", table.path))?;
        // A new table is not there yet.
        let current = fs::read_to_string(&path).unwrap_or_default();
        if text == current {
            continue;
        }
        match check {
            true => stale.push(format!("{}: {}", table.path, first_difference(&current, &text))),
            false => fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?,
        }
    }
    if !stale.is_empty() {
        bail!("tables differ from what `cargo xtask generate` writes:\n{}", stale.join("\n"));
    }
    Ok(())
}

fn first_difference(current: &str, generated: &str) -> String {
    let mut lines = current.lines().zip(generated.lines()).enumerate();
    match lines.find(|(_, (current, generated))| current != generated) {
        Some((index, (current, generated))) => format!("line {}: {current:?} instead of {generated:?}", index + 1),
        None => format!("{} lines instead of {}", current.lines().count(), generated.lines().count()),
    }
}
