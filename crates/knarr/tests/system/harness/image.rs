//! The image that test pods run: busybox, so that it can be made without a registry.

use std::path::Path;

use knarr_cri::containerd::ImageArchive;

/// Has no entry point: a container says its whole command.
pub const IMAGE: &str = "localhost/knarr/busybox:1";
/// The names under which users know such images; the second serves HTTP on port 80.
const BUSYBOX: &str = "docker.io/library/busybox:1";
const NGINX: &str = "docker.io/library/nginx:1";

const APPLETS: [&str; 20] = [
    "sh", "cat", "echo", "env", "hostname", "httpd", "ip", "kill", "ls", "mkdir", "nc", "nslookup", "ping", "ps",
    "sleep", "test", "touch", "true", "false", "wget",
];

/// Puts the images' archives into a folder from which a node loads images.
pub fn write(folder: &Path) {
    std::fs::create_dir_all(folder).expect("a folder for images");
    let busybox = busybox(ImageArchive::new(IMAGE).also_named(BUSYBOX)).build();
    std::fs::write(folder.join("busybox.tar"), busybox).expect("an archive");
    let web = busybox_with_page(ImageArchive::new(NGINX)).entrypoint(&["/bin/httpd", "-f", "-p", "80", "-h", "/www"]);
    std::fs::write(folder.join("nginx.tar"), web.build()).expect("an archive");
}

/// An archive of an image that no node has from the beginning.
pub fn private(name: &str) -> Vec<u8> {
    busybox(ImageArchive::new(name)).file("etc/private", 0o644, name.as_bytes()).build()
}

fn busybox_with_page(image: ImageArchive) -> ImageArchive {
    busybox(image).file("www/index.html", 0o644, b"<h1>It works!</h1>\n")
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
