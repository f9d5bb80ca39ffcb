//! `cargo xtask measure`: figures that show whether the codebase gets easier or harder to work on.

mod cycles;
mod duplicates;
mod items;
mod words;

use std::collections::BTreeMap;
use std::path::Path;

use crate::source::{SourceFile, read_sources};
use items::Function;

const LONG_FILE: usize = 400;
/// Functions with more lines or parameters are listed, with at most `LISTED` of each.
const LONG_FUNCTION: usize = 60;
const MANY_PARAMETERS: usize = 7;
const LISTED: usize = 20;
/// Crates that others build on: each of their public items is documented.
const LIBRARIES: [&str; 5] = ["api", "client", "cri", "relay", "store"];

pub fn run(root: &Path) -> anyhow::Result<()> {
    let sources = read_sources(root)?;
    print_lengths(&sources)?;
    print_cycles(&sources);
    print_duplicates(&sources);
    print_crates(&sources)?;
    print_words(root, &sources)
}

fn print_lengths(sources: &[SourceFile]) -> anyhow::Result<()> {
    let product: Vec<&SourceFile> = sources.iter().filter(|source| !source.is_test).collect();
    let files: Vec<usize> = product.iter().map(|source| source.product_lines()).collect();
    let mut functions = Vec::new();
    for source in &product {
        functions.extend(items::read(source)?.functions.into_iter().map(|function| (*source, function)));
    }
    println!("lengths of product code, in lines");
    println!("  functions  {}", Distribution::of(functions.iter().map(|(_, function)| function.length).collect()));
    println!("  files      {}", Distribution::of(files));
    let long: Vec<_> = product.iter().filter(|source| source.text.lines().count() > LONG_FILE).collect();
    println!("  files over {LONG_FILE} lines, tests included: {}", long.len());
    for source in long {
        println!("    {:5} {}", source.text.lines().count(), source.path.display());
    }
    print_largest("lines", &functions, LONG_FUNCTION, |function| function.length);
    print_largest("parameters", &functions, MANY_PARAMETERS, |function| function.parameters);
    Ok(())
}

fn print_largest(unit: &str, functions: &[(&SourceFile, Function)], limit: usize, size: fn(&Function) -> usize) {
    let mut large: Vec<_> = functions.iter().filter(|(_, function)| size(function) > limit).collect();
    large.sort_by_key(|(_, function)| std::cmp::Reverse(size(function)));
    println!("  functions of more than {limit} {unit}: {}", large.len());
    for (source, function) in large.iter().take(LISTED) {
        println!("    {:5} {}:{} {}", size(function), source.path.display(), function.line, function.name);
    }
}

fn print_cycles(sources: &[SourceFile]) {
    let imports = cycles::imports(sources);
    let pairs = || {
        imports.iter().flat_map(|(krate, imports)| cycles::pairs(imports).into_iter().map(move |pair| (krate, pair)))
    };
    println!("pairs of top-level modules that import each other: {}", pairs().count());
    for (krate, (one, other)) in pairs() {
        println!("  {krate}: {one} and {other}");
    }
    let larger = || {
        imports.iter().flat_map(|(krate, imports)| cycles::larger(imports).into_iter().map(move |group| (krate, group)))
    };
    println!(
        "cycles of three or more top-level modules: {}, with {} modules",
        larger().count(),
        larger().map(|(_, group)| group.len()).sum::<usize>()
    );
    for (krate, group) in larger() {
        println!("  {krate}: {} ({})", group.len(), group.into_iter().collect::<Vec<_>>().join(" "));
    }
}

fn print_duplicates(sources: &[SourceFile]) {
    let duplicated = duplicates::count(sources);
    println!("lines of product code that stand elsewhere too, in runs of {} or more: {duplicated}", duplicates::RUN);
}

fn print_crates(sources: &[SourceFile]) -> anyhow::Result<()> {
    #[derive(Default)]
    struct Totals {
        product: usize,
        test: usize,
        undocumented: usize,
        public: usize,
    }
    let mut crates: BTreeMap<&str, Totals> = BTreeMap::new();
    let mut undocumented = Vec::new();
    for source in sources {
        let totals = crates.entry(&source.krate).or_default();
        totals.product += source.product_lines();
        totals.test += source.test_lines();
        if !source.is_test {
            let items = items::read(source)?;
            totals.public += items.public;
            totals.undocumented += items.undocumented.len();
            // Other programs of a crate are no part of the library.
            let is_library = source.path.components().any(|part| part.as_os_str() == "src");
            if is_library && LIBRARIES.contains(&source.krate.as_str()) {
                let named = items.undocumented.into_iter();
                undocumented.extend(named.map(|(name, line)| format!("{}:{line} {name}", source.path.display())));
            }
        }
    }
    println!("crate           product    test  test/product  public items  undocumented");
    for (krate, totals) in crates {
        let ratio = totals.test as f64 / totals.product.max(1) as f64;
        println!(
            "{krate:14} {:8} {:7} {ratio:13.2} {:13} {:13}",
            totals.product, totals.test, totals.public, totals.undocumented
        );
    }
    println!("public items without documentation in {}: {}", LIBRARIES.join(", "), undocumented.len());
    for item in undocumented {
        println!("    {item}");
    }
    Ok(())
}

fn print_words(root: &Path, sources: &[SourceFile]) -> anyhow::Result<()> {
    println!("words that the glossary replaces, in identifiers, comments, messages and documents");
    for (word, count) in words::count(root, sources)? {
        println!("  {count:5} {word}");
    }
    Ok(())
}

/// Median, 90th percentile and largest of a set of lengths.
struct Distribution {
    count: usize,
    median: usize,
    ninetieth: usize,
    largest: usize,
}

impl Distribution {
    fn of(mut lengths: Vec<usize>) -> Self {
        lengths.sort_unstable();
        let at = |percent: usize| lengths.get(lengths.len().saturating_sub(1) * percent / 100).copied().unwrap_or(0);
        Self { count: lengths.len(), median: at(50), ninetieth: at(90), largest: at(100) }
    }
}

impl std::fmt::Display for Distribution {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { count, median, ninetieth, largest } = self;
        write!(formatter, "{count}: median {median}, 90th percentile {ninetieth}, largest {largest}")
    }
}
