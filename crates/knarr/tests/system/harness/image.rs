//! The image that test pods run: busybox, so that it can be made without a registry.

use std::path::Path;

use knarr_cri::containerd::ImageArchive;

pub const IMAGE: &str = "localhost/knarr/busybox:1";

const APPLETS: [&str; 20] = [
    "sh", "cat", "echo", "env", "hostname", "httpd", "ip", "kill", "ls", "mkdir", "nc", "nslookup", "ping", "ps",
    "sleep", "test", "touch", "true", "false", "wget",
];

/// Puts the image's archive into a folder from which a node loads images.
pub fn write(folder: &Path) {
    std::fs::create_dir_all(folder).expect("a folder for images");
    let busybox = std::fs::read("/bin/busybox").expect("busybox");
    let mut image = ImageArchive::new(IMAGE).environment("PATH", "/bin");
    for directory in ["bin", "etc", "proc", "sys", "dev", "www"] {
        image = image.directory(directory, 0o755);
    }
    image = image.directory("tmp", 0o1777).file("bin/busybox", 0o755, &busybox);
    image = image.file("etc/passwd", 0o644, b"root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n");
    for applet in APPLETS {
        image = image.symlink(&format!("bin/{applet}"), "/bin/busybox");
    }
    std::fs::write(folder.join("busybox.tar"), image.entrypoint(&["/bin/sh"]).build()).expect("an archive");
}
