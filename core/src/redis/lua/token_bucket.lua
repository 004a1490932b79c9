-- Token bucket: one request, by the shortest way there is. The twin of
-- core/src/algorithm/token_bucket.rs; what it cannot do falls through to
-- bucket.lua and check.lua behind it.
--
-- KEYS[1]   the bucket
-- ARGV[1]   numbers for this way, between a + and a |, where there is one; then
--           the request and the limit, for check.lua, which end with the TTL
--           in ms. All in one, as a proxy on the way works on each argument.
--           The numbers:
--   base    where the states of this rate begin
--   step    what it adds to the state: the microseconds that it takes, and
--           300e9 for each token, up to 12 of them
--   most    microseconds that the bucket may be short of full for it to fit
--   cost    tokens that this request takes, where it is more than one
--
-- The state is one integer below 2^53, told in bucket.lua: Redis keeps it in
-- the key's own object, and INCRBY changes it in place, a third of the work of
-- a SET. So the request is added first, and taken off again if it was too
-- much: nobody sees the state between. The TTL stays as it is, and is renewed
-- when it does not cover the debt.
--
-- Replies with the debt after the request, in microseconds; denied, with
-- -1 - debt, or { -1 - debt, microseconds to wait } where it asked for more
-- than one token.
local call, key, given = redis.call, KEYS[1], ARGV
local t = call('TIME') local s, n = t[1], t[2] * 1000
local base, step, most = given[1]:match('^%+(%d+) (%d+) (%d+)')
if base and n % 1000 == 0 then
  local state = redis.pcall('INCRBY', key, step)
  if type(state) == 'number' then -- else there is another form of state, or an error to come
    local takes = step + 0
    local take = takes % 300e9
    local tokens = (takes - take) / 300e9 -- at most 12: more are not counted
    local cost = tokens > 1 and given[1]:match('^%+%d+ %d+ %d+ (%d+)')
    local at = state - base
    local tat = at % 300e9
    local now = s % 300000 * 1000000 + n / 1000
    -- The debt before the request is what lies within the round; with the request it may not.
    local count, ahead = (at - tat) / 300e9, tat - take - now
    if ahead < -197e9 then ahead = ahead + 300e9 elseif ahead > 103e9 then ahead = ahead - 300e9 end
    local debt = ahead + take
    if count >= tokens and count < tokens + 20 and tat >= take then -- else another rate's, or none, or beyond its end
      if ahead < 0 then
        debt = take
        call('INCRBY', key, ('%d'):format((tokens - count) * 300e9 + (now + take) % 300e9 - tat))
      else
        if count - tokens < 12 then
          local held = (count - tokens) * (take / (cost or 1))
          if ahead > held then -- the clock stepped back
            ahead, debt = held, held + take
          end
        end
        if ahead > most + 0 then
          call('INCRBY', key, '-' .. step)
          if call('PTTL', key) < 0 then call('PEXPIRE', key, given[1]:match('%d+$')) end
          return cost and { -1 - ahead, ahead - most } or -1 - ahead
        end
        if count >= 20 then call('INCRBY', key, count < 28 and '-2400000000000' or '-4800000000000') end
      end
      if call('PTTL', key) * 1000 < debt + 1000 then call('PEXPIRE', key, given[1]:match('%d+$')) end
      return debt
    end
    if state == takes then -- there was none
      local full = ('%d'):format(base + tokens * 300e9 + (now + take) % 300e9)
      call('SET', key, full, 'PX', given[1]:match('%d+$'))
      return take
    end
    call('INCRBY', key, '-' .. step)
  end
end
if base then given[1] = given[1]:match('|(.*)') end
