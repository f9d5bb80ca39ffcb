//! The source files of the workspace, split into product and test code.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// One Rust file.
pub struct SourceFile {
    /// The crate it belongs to, by its directory.
    pub krate: String,
    /// Relative to the workspace.
    pub path: PathBuf,
    pub text: String,
    /// Every line is test code: it lies under `tests` or `benches`, or is named like a test module or a fake of one.
    pub is_test: bool,
}

impl SourceFile {
    /// The lines before the inline test module. Test modules in files of their own are declared anywhere.
    pub fn product_lines(&self) -> usize {
        if self.is_test {
            return 0;
        }
        let lines: Vec<&str> = self.text.lines().collect();
        let is_test_module = |pair: &[&str]| {
            pair[0].trim() == "#[cfg(test)]" && pair[1].contains("mod ") && pair[1].trim_end().ends_with('{')
        };
        lines.windows(2).position(is_test_module).unwrap_or(lines.len())
    }

    pub fn test_lines(&self) -> usize {
        self.text.lines().count() - self.product_lines()
    }
}

/// The directory that holds the workspace manifest.
pub fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All Rust files below `crates`, sorted by path.
pub fn read_sources(root: &Path) -> anyhow::Result<Vec<SourceFile>> {
    let mut paths = Vec::new();
    collect(&root.join("crates"), &mut paths)?;
    paths.sort();
    paths.into_iter().map(|path| read_source(root, &path)).collect()
}

fn read_source(root: &Path, path: &Path) -> anyhow::Result<SourceFile> {
    let relative = path.strip_prefix(root).context("a source file lies outside the workspace")?;
    let krate = relative.components().nth(1).context("a source file lies outside a crate")?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let in_test_directory =
        relative.components().any(|part| ["tests", "benches"].contains(&&*part.as_os_str().to_string_lossy()));
    Ok(SourceFile {
        krate: krate.as_os_str().to_string_lossy().into_owned(),
        is_test: in_test_directory || name == "tests" || name.ends_with("_tests") || name.starts_with("fake_"),
        text: fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?,
        path: relative.to_path_buf(),
    })
}

fn collect(directory: &Path, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(())
}
