-- What the time is: whole seconds and nanoseconds of Redis's own clock.
local call = redis.call
local t = call('TIME') local s, n = t[1], t[2] * 1000
