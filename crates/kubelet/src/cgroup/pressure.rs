//! Pressure stall information (PSI) of a cgroup or of the whole host.

use std::path::Path;

/// Averages are percentages over 10, 60 and 300 seconds; the total is in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    pub average_10: f64,
    pub average_60: f64,
    pub average_300: f64,
    pub total: u64,
}

/// Stalls of some processes, and of all at once.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stalls {
    pub some: Stall,
    pub full: Stall,
}

/// Stalls on CPU, memory and disks; none where the kernel does not report them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PressureStats {
    pub cpu: Option<Stalls>,
    pub memory: Option<Stalls>,
    pub io: Option<Stalls>,
}

pub(super) fn unified(directory: &Path) -> PressureStats {
    read(|resource| directory.join(format!("{resource}.pressure")))
}

/// The pressure of the whole host.
pub fn host() -> PressureStats {
    read(|resource| Path::new("/proc/pressure").join(resource))
}

fn read(path: impl Fn(&str) -> std::path::PathBuf) -> PressureStats {
    let of = |resource: &str| std::fs::read_to_string(path(resource)).ok().and_then(|text| parse(&text));
    PressureStats { cpu: of("cpu"), memory: of("memory"), io: of("io") }
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, and the same for `full`, which older kernels leave out for CPU.
fn parse(text: &str) -> Option<Stalls> {
    let line = |kind: &str| {
        let fields = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))?;
        let field = |name: &str| fields.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        let share = |name: &str| field(name).and_then(|value| value.parse().ok()).unwrap_or(0.0);
        Some(Stall {
            average_10: share("avg10"),
            average_60: share("avg60"),
            average_300: share("avg300"),
            total: field("total")?.trim().parse().ok()?,
        })
    };
    Some(Stalls { some: line("some")?, full: line("full").unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lines_are_read() {
        let text =
            "some avg10=1.50 avg60=0.25 avg300=0.00 total=1234\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n";
        let stalls = parse(text).expect("stalls");
        let some = Stall { average_10: 1.5, average_60: 0.25, average_300: 0.0, total: 1234 };
        assert_eq!((stalls.some, stalls.full.total), (some, 5));
        assert_eq!(parse("some avg10=0.00 avg60=0.00 avg300=0.00 total=9\n").map(|stalls| stalls.full.total), Some(0));
        assert_eq!(parse(""), None);
    }
}
