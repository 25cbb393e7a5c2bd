//! Builds LuaJIT from the source that the crate `luajit-src` carries.
//!
//! Not left to `mlua-sys`, because one compile-time option matters: without
//! `LUAJIT_ENABLE_CHECKHOOK` the machine code that LuaJIT generates never looks for a hook, and
//! nothing could end an endless loop that was hot enough to be compiled. The price is one test per
//! iteration of a compiled loop (docs/design/2026-11-21-lua.md).

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=CC");
    let compiler = cc::Build::new().get_compiler();
    let flags = compiler.cflags_env();
    let command = format!(
        "{} {} -DLUAJIT_ENABLE_CHECKHOOK",
        compiler.path().display(),
        flags.to_string_lossy()
    );
    // SAFETY: a build script of one thread; nobody reads the environment meanwhile.
    // JUSTIFICATION: `luajit-src` takes the compiler's command from this variable and from nowhere
    // else.
    unsafe { env::set_var("STATIC_CC", command) };
    let artifacts = luajit_src::Build::new()
        .lua52compat(true)
        .debug(false)
        .build();
    println!(
        "cargo:rustc-link-search=native={}",
        artifacts.lib_dir().display()
    );
    for library in artifacts.libs() {
        // Whole: the linker meets the archive before the crate that declares its functions.
        println!("cargo:rustc-link-lib=static:+whole-archive={library}");
    }
    write_jit_libraries();
    // Lua libraries that are shared objects (`lua_package_cpath`) look for the API in the program.
    println!("cargo:rustc-link-lib=dl");
    println!("cargo:rustc-link-lib=m");
}

/// Where the build of `luajit-src` leaves the source, among it what it has generated.
const SOURCE: &str = "luajit-build/src/jit";

/// Writes a list of LuaJIT's libraries that are Lua, with their code: `include!`d by `api/jit.rs`.
/// They fit one version of LuaJIT only, so what a system has installed is of no use.
fn write_jit_libraries() {
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where to write"));
    let mut names = vec!["bc", "dump", "p", "v", "vmdef", "zone"];
    names.extend(match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => &["dis_x86", "dis_x64"][..],
        Ok("aarch64") => &["dis_arm64"],
        // `jit.dump` shows no machine code there.
        _ => &[],
    });
    let mut list = String::from("&[\n");
    for name in names {
        let path = folder.join(SOURCE).join(format!("{name}.lua"));
        assert!(path.is_file(), "LuaJIT has no {}", path.display());
        list.push_str(&format!("    ({name:?}, include_bytes!({path:?})),\n"));
    }
    list.push_str("]\n");
    fs::write(folder.join("jit_libraries.rs"), list).expect("the list can be written");
}
