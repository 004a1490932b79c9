;; A filter that shares a VM's name with another one's, and so its shared data, and writes what it
;; likes into it: at each request it puts other garbage into the pages 0 to 8 of the zone `main` of 8
;; pages, and into their seed. Some of it begins as a page does.
(module
  (import "env" "proxy_set_shared_data" (func $set (param i32 i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 2)
  (data (i32.const 0) "tollgate/main/8/0")
  (data (i32.const 32) "tollgate/main/seed")
  (data (i32.const 64) "Tg\01\00")
  (global $state (mut i32) (i32.const 12345))
  (global $heap (mut i32) (i32.const 65536))

  (func (export "proxy_abi_version_0_2_1"))
  (func (export "proxy_on_context_create") (param i32 i32))
  (func (export "proxy_on_vm_start") (param i32 i32) (result i32) (i32.const 1))
  (func (export "proxy_on_configure") (param i32 i32) (result i32) (i32.const 1))

  ;; One place for whatever the host hands over: none of it is read.
  (func (export "proxy_on_memory_allocate") (param i32) (result i32) (global.get $heap))

  ;; A linear congruential generator; the upper bits are the better ones.
  (func $next (result i32)
    (global.set $state
      (i32.add (i32.mul (global.get $state) (i32.const 1103515245)) (i32.const 12345)))
    (i32.shr_u (global.get $state) (i32.const 12)))

  ;; Fills the place 1024 with so many bytes; every second time they begin as a page's do.
  (func $fill (param $len i32)
    (local $at i32)
    (loop $more
      (i32.store8 (i32.add (i32.const 1024) (local.get $at)) (call $next))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br_if $more (i32.lt_u (local.get $at) (local.get $len))))
    (if (i32.and (call $next) (i32.const 1))
      (then (i32.store (i32.const 1024) (i32.load (i32.const 64))))))

  (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
    (local $page i32)
    (local $len i32)
    (loop $more
      (local.set $len (i32.and (call $next) (i32.const 4095)))
      (call $fill (local.get $len))
      (i32.store8 (i32.const 16) (i32.add (i32.const 48) (local.get $page)))
      ;; 0: whatever was written before.
      (drop (call $set (i32.const 0) (i32.const 17) (i32.const 1024) (local.get $len) (i32.const 0)))
      (local.set $page (i32.add (local.get $page) (i32.const 1)))
      (br_if $more (i32.lt_u (local.get $page) (i32.const 9))))
    (drop (call $set (i32.const 32) (i32.const 18) (i32.const 1024) (i32.const 5) (i32.const 0)))
    (i32.const 0)))
