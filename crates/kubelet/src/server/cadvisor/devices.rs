//! I/O of containers on block devices.

use k8s_openapi::jiff::Timestamp;

use super::disk::{COLUMNS, Disk};
use super::{Page, Subject};
use crate::cgroup::DeviceTraffic;

pub(super) fn traffic(page: &mut Page, subjects: &[Subject], now: Timestamp) {
    type Read = fn(&DeviceTraffic) -> u64;
    type ReadDisk = Option<fn(&Disk) -> u64>;
    let families: [(&str, &str, Read, ReadDisk); 4] = [
        ("container_fs_reads_bytes_total", "Bytes read from the device.", |device| device.read_bytes, None),
        ("container_fs_writes_bytes_total", "Bytes written to the device.", |device| device.written_bytes, None),
        ("container_fs_reads_total", "Read operations on the device.", |device| device.reads, Some(Disk::reads)),
        ("container_fs_writes_total", "Write operations on the device.", |device| device.writes, Some(Disk::writes)),
    ];
    for (name, help, read, read_disk) in families {
        page.family(name, "counter", help);
        for subject in subjects {
            let devices = &subject.details.devices;
            for device in devices {
                let label = device_name(&device.device);
                page.value(name, &subject.with(&[("device", &label)]), read(device) as f64, Some(now));
            }
            let uncounted = |disk: &&Disk| devices.iter().all(|device| device.device != disk.device);
            if let (Some(disk), Some(read)) = (subject.disk.as_ref().filter(uncounted), read_disk) {
                let label = device_name(&disk.device);
                page.value(name, &subject.with(&[("device", &label)]), read(disk) as f64, Some(now));
            }
        }
    }
    for column in &COLUMNS {
        let (name, kind, help, ..) = column;
        page.family(name, kind, help);
        for (subject, disk) in subjects.iter().filter_map(|subject| Some((subject, subject.disk.as_ref()?))) {
            let label = device_name(&disk.device);
            page.value(name, &subject.with(&[("device", &label)]), disk.value(column), Some(now));
        }
    }
    let name = "container_blkio_device_usage_total";
    page.family(name, "counter", "Bytes read from and written to the device.");
    for subject in subjects {
        for device in &subject.details.devices {
            let label = device_name(&device.device);
            let (major, minor) = device.device.split_once(':').unwrap_or_default();
            for (operation, bytes) in [("Read", device.read_bytes), ("Write", device.written_bytes)] {
                let more = [("device", label.as_str()), ("major", major), ("minor", minor), ("operation", operation)];
                page.value(name, &subject.with(&more), bytes as f64, Some(now));
            }
        }
    }
}

/// `/dev/sda` for `8:0`.
fn device_name(numbers: &str) -> String {
    let link = std::fs::read_link(format!("/sys/dev/block/{numbers}")).unwrap_or_default();
    let name = link.file_name().map(|name| format!("/dev/{}", name.to_string_lossy()));
    name.unwrap_or_else(|| numbers.to_string())
}
