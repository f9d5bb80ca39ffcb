//! The processes of a container: how many, what they have open, and how much they may.

/// Counts of a container's processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Processes {
    pub(super) count: u64,
    pub(super) files: u64,
    pub(super) sockets: u64,
    /// Open files that the first process may have; -1 for any number.
    pub(super) soft_limit: Option<i64>,
}

impl Processes {
    /// The one with the lowest number is nearly always the container's own, whose limits the others inherit.
    pub(super) fn of(processes: &[i32]) -> Self {
        let first = processes.iter().min();
        let limits = first.and_then(|first| std::fs::read_to_string(format!("/proc/{first}/limits")).ok());
        let soft_limit = limits.and_then(|limits| soft_limit(&limits));
        let mut found = Self { count: processes.len() as u64, soft_limit, ..Self::default() };
        for process in processes {
            for entry in std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten() {
                found.files += 1;
                let target = std::fs::read_link(entry.path()).unwrap_or_default();
                found.sockets += u64::from(target.to_string_lossy().starts_with("socket:"));
            }
        }
        found
    }
}

/// `Max open files            1024                 524288               files`
fn soft_limit(limits: &str) -> Option<i64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(-1),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_files_and_limits_are_found() {
        let pid = i32::try_from(std::process::id()).expect("a process id");
        let _socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let own = Processes::of(&[pid]);
        assert_eq!(own.count, 1);
        assert!(own.sockets >= 1 && own.files > own.sockets, "{own:?}");
        assert!(own.soft_limit.is_some_and(|limit| limit == -1 || limit > 0), "{own:?}");
    }

    #[test]
    fn the_soft_limit_is_the_first_number() {
        let table = |limit: &str| {
            format!("Limit  Soft Limit\nMax processes 5 6 processes\nMax open files   {limit}   9 files\n")
        };
        assert_eq!(soft_limit(&table("1024")), Some(1024));
        assert_eq!(soft_limit(&table("unlimited")), Some(-1));
        assert_eq!(soft_limit("Max processes 5 6 processes\n"), None);
    }
}
