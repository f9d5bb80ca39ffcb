//! The image of test pods: busybox, so that it can be built without a registry.

use std::path::Path;

use knarr_cri::containerd::ImageArchive;

/// Has no entry point: containers give a full command.
pub const IMAGE: &str = "localhost/knarr/busybox:1";
/// The usual names of such images; the second serves HTTP on port 80.
const BUSYBOX: &str = "docker.io/library/busybox:1";
const NGINX: &str = "docker.io/library/nginx:1";

const APPLETS: [&str; 20] = [
    "sh", "cat", "echo", "env", "hostname", "httpd", "ip", "kill", "ls", "mkdir", "nc", "nslookup", "ping", "ps",
    "sleep", "test", "touch", "true", "false", "wget",
];

/// Writes the archives into a node's images directory.
pub fn write(directory: &Path) {
    std::fs::create_dir_all(directory).expect("a directory for images");
    let busybox = busybox(ImageArchive::new(IMAGE).also_named(BUSYBOX)).build();
    std::fs::write(directory.join("busybox.tar"), busybox).expect("an archive");
    let web = application(NGINX, "<h1>It works!</h1>\n");
    std::fs::write(directory.join("nginx.tar"), web).expect("an archive");
}

/// An archive of an image that no node has initially.
pub fn private(name: &str) -> Vec<u8> {
    busybox(ImageArchive::new(name)).file("etc/private", 0o644, name.as_bytes()).build()
}

/// An archive of an image that serves a page on port 80.
pub fn application(name: &str, page: &str) -> Vec<u8> {
    let image = busybox(ImageArchive::new(name)).file("www/index.html", 0o644, page.as_bytes());
    image.entrypoint(&["/bin/httpd", "-f", "-p", "80", "-h", "/www"]).build()
}

fn busybox(mut image: ImageArchive) -> ImageArchive {
    let program = std::fs::read("/bin/busybox").expect("busybox");
    for directory in ["bin", "etc", "proc", "sys", "dev", "www"] {
        image = image.directory(directory, 0o755);
    }
    image = image.directory("tmp", 0o1777).file("bin/busybox", 0o755, &program);
    image = image.file("etc/passwd", 0o644, b"root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n");
    for applet in APPLETS {
        image = image.symlink(&format!("bin/{applet}"), "/bin/busybox");
    }
    image.environment("PATH", "/bin")
}
