//! The flags that this process was started with, for the pages that show them.

use std::collections::BTreeMap;
use std::sync::OnceLock;

/// The flags of this process and their values.
static FLAGS: OnceLock<BTreeMap<String, String>> = OnceLock::new();

/// The flags of this process and their values.
pub fn flags() -> BTreeMap<String, String> {
    FLAGS.get().cloned().unwrap_or_default()
}

/// Records the flags of the command line.
pub fn set_flags(matches: &clap::ArgMatches) {
    let Some((_, inner)) = matches.subcommand() else { return };
    // Groups of flags have the names of types.
    let flags = inner.ids().filter(|id| !id.as_str().contains(char::is_uppercase));
    let values = flags.filter_map(|id| {
        let raw = inner.try_get_raw(id.as_str()).ok().flatten()?;
        let words: Vec<String> = raw.map(|word| word.to_string_lossy().into_owned()).collect();
        // A join token is a secret.
        let value = if id.as_str() == "token" { "CLASSIFIED".to_owned() } else { words.join(",") };
        Some((id.as_str().replace('_', "-"), value))
    });
    // Set once per process.
    let _ = FLAGS.set(values.collect());
}
