//! Runs every fuzz target on its seeds and on the kept inputs in `fuzz/corpora`, among which is every finding.

use std::path::{Path, PathBuf};

use knarr_fuzz_targets::{TARGETS, seeds};

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_file()).collect()
}

#[test]
fn kept_inputs_upset_no_target() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpora");
    let seeds = seeds();
    for (name, target) in TARGETS {
        let own = seeds.iter().filter(|(target, _)| target == name).flat_map(|(_, inputs)| inputs);
        let mut count = 0;
        for input in own {
            target(input);
            count += 1;
        }
        assert!(count > 0, "{name} has no seed");
        let kept = files(&corpora.join(name));
        assert!(!kept.is_empty(), "fuzz/corpora/{name} has no input: `make corpora` writes the first ones");
        for file in kept {
            // Printed only if the target panics.
            println!("{}", file.display());
            target(&std::fs::read(&file).expect("an input"));
        }
    }
}

#[test]
fn every_corpus_has_a_target() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpora");
    for entry in std::fs::read_dir(corpora).into_iter().flatten().flatten() {
        let name = entry.file_name();
        assert!(TARGETS.iter().any(|(target, _)| name == *target), "{name:?}");
    }
}

/// A small generator of numbers, which needs no seed from outside: failures repeat.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(below.max(1)).expect("a count")).expect("a count")
    }
}

/// Changes an input in a few places, as a fuzzer does.
fn mutate(input: &[u8], others: &[Vec<u8>], numbers: &mut Numbers) -> Vec<u8> {
    const PIECES: [&[u8]; 12] = [
        b"\0",
        b"\xff\xff\xff\xff",
        b"\r\n",
        b"\"",
        b"{",
        b"]",
        b"..",
        b"-1",
        b"9223372036854775808",
        b"\xc0\x0c",
        b"&a *a",
        b" ",
    ];
    let mut changed = input.to_vec();
    for _ in 0..=numbers.next(4) {
        let at = numbers.next(changed.len() + 1);
        let end = (at + numbers.next(16)).min(changed.len());
        match numbers.next(6) {
            0 if at < changed.len() => changed[at] ^= 1 << numbers.next(8),
            1 => drop(changed.drain(at..end)),
            2 => {
                let piece = changed[at..end].to_vec();
                drop(changed.splice(at..at, piece));
            }
            3 => drop(changed.splice(at..end, PIECES[numbers.next(PIECES.len())].iter().copied())),
            4 => changed.insert(at, u8::try_from(numbers.next(256)).expect("a byte")),
            _ => {
                let other = &others[numbers.next(others.len())];
                let from = numbers.next(other.len() + 1);
                changed.truncate(at);
                changed.extend_from_slice(&other[from..]);
            }
        }
    }
    changed.truncate(16 << 10);
    changed
}

/// A fuzzer without feedback, for machines without a nightly compiler: `KNARR_FUZZ_SECONDS` sets how long each target runs.
#[test]
fn mutated_inputs_upset_no_target() {
    let seconds = std::env::var("KNARR_FUZZ_SECONDS").ok().and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.2);
    let only = std::env::var("KNARR_FUZZ_TARGET").unwrap_or_default();
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpora");
    let seeds = seeds();
    for (name, target) in TARGETS.iter().filter(|(name, _)| only.is_empty() || *name == only) {
        let own = seeds.iter().filter(|(target, _)| target == name).flat_map(|(_, inputs)| inputs.clone());
        let kept = files(&corpora.join(name)).into_iter().map(|file| std::fs::read(file).expect("an input"));
        let mut inputs: Vec<Vec<u8>> = own.chain(kept).collect();
        inputs.sort();
        let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
        let started = std::time::Instant::now();
        let mut count = 0_u64;
        while started.elapsed().as_secs_f64() < seconds {
            let chosen = inputs[numbers.next(inputs.len())].clone();
            let input = mutate(&chosen, &inputs, &mut numbers);
            let started = std::time::Instant::now();
            if std::panic::catch_unwind(|| target(&input)).is_err() || started.elapsed().as_secs() >= 10 {
                let path = std::env::temp_dir().join(format!("knarr-finding-{name}"));
                std::fs::write(&path, &input).expect("a file for the finding");
                panic!("{name} failed on {} after {count} inputs", path.display());
            }
            count += 1;
        }
        println!("{name}: {count} inputs in {seconds} s");
    }
}
