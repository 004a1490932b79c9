-- Token bucket: one request, by the shortest way there is. The twin of
-- core/src/algorithm/token_bucket.rs; what it cannot do falls through to
-- bucket.lua and check.lua behind it.
--
-- KEYS[1]   the bucket
-- ARGV[1]   the request and the limit, for check.lua
-- ARGV[2]   where the states of this rate begin; the rest only with this one
-- ARGV[3]   microseconds that this request takes
-- ARGV[4]   microseconds that the bucket may be short of full for it to fit
-- ARGV[5]   milliseconds of the TTL
-- ARGV[6]   microseconds of one token, where the request takes more than one
--
-- The state is one integer below 2^53, which Redis keeps in the key's own
-- object: see bucket.lua. INCRBY changes it in place, a fifth of the work of
-- a SET; the TTL stays, and is renewed when it no longer covers the debt.
--
-- Replies with the debt after the request, in microseconds; denied, with
-- { -1 - debt, microseconds to wait }.
local call, key = redis.call, KEYS[1]
local t = call('TIME') local s, n = t[1], t[2] * 1000
local base = ARGV[2]
if base and n % 1000 == 0 then
  local take = ARGV[3] + 0
  local now = s % 375000 * 1000000 + n / 1000
  local state = call('GET', key)
  if not state then
    local count = take / (ARGV[6] or take)
    if count > 15 then count = 15 end
    local at = base + count * 375e9 + (now + take) % 375e9
    call('SET', key, ('%d'):format(at), 'PX', ARGV[5])
    return take
  end
  local at = #state < 17 and state - base or -1
  if at >= 0 and at < 6e12 then
    local tat = at % 375e9
    local ahead = tat - now
    if ahead < -1875e8 then ahead = ahead + 375e9 elseif ahead > 1875e8 then ahead = ahead - 375e9 end
    local ttl = call('PTTL', key)
    if ahead > 0 then
      local count = (at - tat) / 375e9
      if count < 15 then
        local held = count * (ARGV[6] or take)
        if ahead > held then ahead = held end -- the clock stepped back
      end
      if ahead > ARGV[4] + 0 then
        if ttl < 0 then call('PEXPIRE', key, ARGV[5]) end
        return { -1 - ahead, ahead - ARGV[4] }
      end
      if count == 15 then
        call('INCRBY', key, ARGV[3])
      else
        local more = count + take / (ARGV[6] or take)
        if more > 15 then more = 15 end
        local next = base + more * 375e9 + (tat + take) % 375e9
        call('INCRBY', key, ('%d'):format(next - state))
      end
    else
      ahead = 0
      local count = take / (ARGV[6] or take)
      if count > 15 then count = 15 end
      local next = base + count * 375e9 + (now + take) % 375e9
      call('INCRBY', key, ('%d'):format(next - state))
    end
    ahead = ahead + take
    if ttl * 1000 < ahead + 1000 then call('PEXPIRE', key, ARGV[5]) end
    return ahead
  end
end
