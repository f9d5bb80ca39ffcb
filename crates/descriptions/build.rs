//! Collects the descriptions of all types and fields from the source of the typed API, and compresses them.
//!
//! The texts are Kubernetes' own and not part of this repository. k8s-openapi contains them twice: as comments, and in the
//! schemas of its feature `schemars`. Its source is generated and regular, so reading it takes a second, where compiling the
//! crate again with that feature would take half a minute.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use flate2::Compression;
use flate2::write::DeflateEncoder;
use serde_json::Value;

const LIBRARY: &str = "k8s-openapi";
/// There are a few more; fewer mean that the form of the source has changed.
const MIN_DESCRIPTIONS: usize = 2500;

type Descriptions = BTreeMap<(String, String), String>;

fn main() -> Result<(), Box<dyn Error>> {
    let workspace = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../..");
    println!("cargo::rerun-if-changed=build.rs");
    // The version of the library, and of the API.
    println!("cargo::rerun-if-changed={}", workspace.join("Cargo.lock").display());
    println!("cargo::rerun-if-changed={}", workspace.join("Cargo.toml").display());
    let source = library(&workspace)?.join("src").join(api_version(&workspace)?);
    let mut found = Descriptions::new();
    collect(&source, &mut found)?;
    if found.len() < MIN_DESCRIPTIONS {
        return Err(format!("only {} descriptions in {}", found.len(), source.display()).into());
    }
    let table = fs::File::create(format!("{}/descriptions.deflated", env::var("OUT_DIR")?))?;
    let mut table = DeflateEncoder::new(table, Compression::best());
    for ((name, field), description) in found {
        // The format that the library reads: type, field and description, each terminated by a zero byte.
        for text in [name, field, description] {
            table.write_all(text.as_bytes())?;
            table.write_all(&[0])?;
        }
    }
    table.finish()?;
    Ok(())
}

/// The feature that chooses the version of the API, which is also the directory of its types.
fn api_version(workspace: &Path) -> Result<String, Box<dyn Error>> {
    let manifest = fs::read_to_string(workspace.join("Cargo.toml"))?;
    let line = manifest.lines().find(|line| line.starts_with(LIBRARY)).unwrap_or_default();
    let feature = line.split('"').find(|text| text.starts_with("v1_"));
    Ok(feature.ok_or("Cargo.toml names no version of the API for k8s-openapi")?.to_owned())
}

/// The directory of the library's source: where cargo unpacked it, or where cargo says that it is.
fn library(workspace: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let lock = fs::read_to_string(workspace.join("Cargo.lock"))?;
    let mut after = lock.lines().skip_while(|line| *line != format!("name = \"{LIBRARY}\""));
    let version = after.nth(1).and_then(|line| line.split('"').nth(1)).ok_or("Cargo.lock does not name k8s-openapi")?;
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| env::home_dir().map(|home| home.join(".cargo"))).unwrap_or_default();
    for registry in fs::read_dir(home.join("registry/src")).into_iter().flatten().flatten() {
        let unpacked = registry.path().join(format!("{LIBRARY}-{version}"));
        if unpacked.join("src").is_dir() {
            return Ok(unpacked);
        }
    }
    library_by_metadata(workspace)
}

/// The directory in a vendored or otherwise replaced registry.
fn library_by_metadata(workspace: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(workspace)
        .output()?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array();
    let found = packages.into_iter().flatten().find(|package| package["name"] == LIBRARY);
    let manifest =
        found.and_then(|package| package["manifest_path"].as_str()).ok_or("cargo does not know k8s-openapi")?;
    Ok(Path::new(manifest).parent().unwrap_or(Path::new("/")).to_owned())
}

fn collect(directory: &Path, found: &mut Descriptions) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, found)?;
        } else {
            read_type(&fs::read_to_string(&path)?, found).map_err(|error| format!("{}: {error}", path.display()))?;
        }
    }
    Ok(())
}

/// Reads the schema of a type. Its name, its fields and the descriptions of both are distinguished by their indentation.
fn read_type(source: &str, found: &mut Descriptions) -> Result<(), String> {
    let (mut name, mut field) = (String::new(), String::new());
    for line in source.lines() {
        let text = line.trim_start();
        let depth = line.len() - text.len();
        match depth {
            0 if text == "}" => name.clear(),
            8 if text.starts_with("\"io.k8s.") => {
                name = quoted(text, ".into()").map_or_else(String::new, str::to_owned);
                field.clear();
            }
            _ if name.is_empty() || is_unstable(&name) => {}
            12 => {
                if let Some(description) = text.strip_prefix("\"description\": ").and_then(|rest| quoted(rest, ",")) {
                    found.insert((name.clone(), String::new()), unescape(description)?);
                }
            }
            16 => {
                let named = quoted(text, ": {").or_else(|| quoted(text, ": ({"));
                if let Some(named) = named {
                    field = named.to_owned();
                }
            }
            20 if !field.is_empty() => {
                let inline = text.strip_prefix("\"description\": ").and_then(|rest| quoted(rest, ","));
                let inserted = text
                    .strip_prefix("schema_obj.ensure_object().insert(\"description\".into(), ")
                    .and_then(|rest| quoted(rest, ".into());"));
                if let Some(description) = inline.or(inserted) {
                    found.insert((name.clone(), field.clone()), unescape(description)?);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// What is between quotes, if this is all but the ending.
fn quoted<'a>(text: &'a str, ending: &str) -> Option<&'a str> {
    text.strip_prefix('"')?.strip_suffix(ending)?.strip_suffix('"')
}

/// Types of versions such as `v1beta1` are not served.
fn is_unstable(name: &str) -> bool {
    name.split('.').any(|part| {
        let number = part.strip_prefix('v').filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        number.is_some_and(|rest| rest.contains("alpha") || rest.contains("beta"))
    })
}

/// The text of a string literal.
fn unescape(literal: &str) -> Result<String, String> {
    let mut text = String::with_capacity(literal.len());
    let mut rest = literal.chars();
    while let Some(character) = rest.next() {
        if character != '\\' {
            text.push(character);
            continue;
        }
        match rest.next() {
            Some('n') => text.push('\n'),
            Some('t') => text.push('\t'),
            Some('r') => text.push('\r'),
            Some(plain @ ('"' | '\'' | '\\')) => text.push(plain),
            Some('u') => {
                let code: String = rest.by_ref().skip(1).take_while(|c| *c != '}').collect();
                let code = u32::from_str_radix(&code, 16).ok().and_then(char::from_u32);
                text.push(code.ok_or_else(|| format!("not a character: {literal}"))?);
            }
            other => return Err(format!("unknown escape {other:?} in {literal}")),
        }
    }
    Ok(text)
}
