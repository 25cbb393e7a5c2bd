//! Builds LuaJIT from the source that the crate `luajit-src` carries.
//!
//! Not left to `mlua-sys`, because one compile-time option matters: without `LUAJIT_ENABLE_CHECKHOOK` machine code
//! that LuaJIT has compiled never looks for a hook, and an endless loop that was hot enough to be compiled could not be
//! ended by anybody. The price is a test per turn of a compiled loop (docs/design/2026-11-21-lua.md).

use std::env;

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
    // JUSTIFICATION: `luajit-src` takes the compiler's command from this variable and from nowhere else.
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
    // Lua libraries that are shared objects (`lua_package_cpath`) look for the API in the program.
    println!("cargo:rustc-link-lib=dl");
    println!("cargo:rustc-link-lib=m");
}
