//! The kernel's table of mounts (`/proc/self/mountinfo`), which is the only record of what is mounted.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Major and minor number of the mounted filesystem.
    pub device: (u32, u32),
    /// The directory or file of the filesystem that is mounted.
    pub root: PathBuf,
    pub target: PathBuf,
    pub read_only: bool,
    /// The filesystem as a whole is read-only, by request or after errors.
    pub filesystem_read_only: bool,
}

/// Reads the table.
pub fn read() -> Result<Vec<Mount>, Error> {
    let path = Path::new("/proc/self/mountinfo");
    let text = fs::read(path).map_err(Error::file("read", path))?;
    Ok(parse(&text))
}

/// The topmost mount at a path, if it is one.
pub fn at<'a>(table: &'a [Mount], target: &Path) -> Option<&'a Mount> {
    table.iter().rev().find(|mount| mount.target == target)
}

fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|&byte| byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let (major, minor) = std::str::from_utf8(fields.get(2)?).ok()?.split_once(':')?;
    // A variable number of fields ends with a dash; the third after it has the options of the filesystem.
    let dash = fields.iter().position(|field| field == b"-")?;
    Some(Mount {
        device: (major.parse().ok()?, minor.parse().ok()?),
        root: unescape(fields.get(3)?),
        target: unescape(fields.get(4)?),
        read_only: has_option(fields.get(5)?, b"ro"),
        filesystem_read_only: has_option(fields.get(dash + 3)?, b"ro"),
    })
}

fn has_option(options: &[u8], option: &[u8]) -> bool {
    options.split(|&byte| byte == b',').any(|one| one == option)
}

/// Space, tab, newline and backslash are written as three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if first == b'\\' => {
                plain.push(byte);
                rest = &after[3..];
            }
            _ => {
                plain.push(first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_parsed() {
        let text = b"36 35 7:3 / /var/lib/kubelet/a\\040b rw,noatime shared:1 master:2 - ext4 /dev/loop3 ro,discard\n\
                     37 35 0:5 /loop4 /publish/x ro - devtmpfs udev rw\n\
                     nonsense\n";
        let expected = [
            Mount {
                device: (7, 3),
                root: "/".into(),
                target: "/var/lib/kubelet/a b".into(),
                read_only: false,
                filesystem_read_only: true,
            },
            Mount {
                device: (0, 5),
                root: "/loop4".into(),
                target: "/publish/x".into(),
                read_only: true,
                filesystem_read_only: false,
            },
        ];
        assert_eq!(parse(text), expected);
        assert_eq!(at(&expected, Path::new("/publish/x")), Some(&expected[1]));
        assert_eq!(at(&expected, Path::new("/publish")), None);
    }
}
