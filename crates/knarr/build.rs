//! Links the program so that it can be loaded at any address, with its relocations packed.
//!
//! Address randomisation costs about 100,000 relocations at each start. Packed (`DT_RELR`) they take a thirtieth of the space
//! and are applied in one pass, which matters to the network plugin: it is started once for each pod. The tables that hold
//! addresses are read-only after that (full RELRO).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,-z,relro,-z,now,-z,pack-relative-relocs");
}
