-- SPDX-License-Identifier: GPL-2.0-or-later
-- Weak tables, ephemerons, finalizers and resurrection.
local function count(t)
  local n = 0
  for _ in pairs(t) do n = n + 1 end
  return n
end

-- weak values, weak keys, both; numbers, strings and booleans stay
for _, mode in ipairs {"k", "v", "kv"} do
  local t, kept = setmetatable({}, {__mode = mode}), {}
  for i = 1, 300 do
    local o = {i}
    if i % 3 == 0 then kept[#kept + 1] = o end
    t[i] = o
    t[o] = i
    t["s" .. i] = {}
    t[{}] = "string " .. i
    t[i + 0.5] = "constant"
    t[string.rep("long", 20) .. i] = true
  end
  collectgarbage()
  print(mode, count(t), #kept)
  for _, o in ipairs(kept) do assert(t[o] == o[1] or mode == "v" and t[o] == o[1]) end
  for i = 1, 300 do
    assert(t[i + 0.5] == "constant" and t[string.rep("long", 20) .. i] == true)
    t[i + 0.5], t[string.rep("long", 20) .. i] = nil, nil
  end
  collectgarbage()
  print(mode, count(t))
end

-- ephemerons: chains, and values that refer to their keys
local e = setmetatable({}, {__mode = "k"})
local first = {}
local k = first
for i = 1, 200 do
  local nextkey = {i}
  e[k] = nextkey
  e[{}] = {k}
  k = nextkey
end
for i = 1, 50 do local own = {} e[own] = {own, {own}} end
k = nil
collectgarbage()
print(count(e))
k = first
for i = 1, 200 do k = e[k] assert(k[1] == i) end
first, k = nil, nil
collectgarbage()
print(count(e))

-- a table becomes weak and strong again
local s = {}
for i = 1, 20 do s[i] = {i} s[{}] = i end
setmetatable(s, {__mode = "v"})
collectgarbage()
print(count(s))
setmetatable(s, nil)
for i = 1, 20 do s[i] = {i} end
collectgarbage()
print(count(s), #s)
-- __mode comes after the metatable
local late = {}
local l = setmetatable({{}, {}, "x"}, late)
late.__mode = "v"
collectgarbage()
print(count(l))

-- a weak table is a metatable
local wm = setmetatable({__index = {inherited = 5}}, {__mode = "k"})
print(setmetatable({}, wm).inherited)

-- weak tables under load
local cache, hits = setmetatable({}, {__mode = "v"}), 0
for i = 1, 30000 do
  local key = "key" .. i % 17
  local v = cache[key]
  if v then hits = hits + 1 assert(v.key == key) else cache[key] = {key = key} end
end
print(hits > 0)

-- finalizers: the newest first, errors, resurrection, objects that died together
collectgarbage("stop")
local order = {}
for i = 1, 10 do setmetatable({name = i}, {__gc = function(o) order[#order + 1] = o.name end}) end
collectgarbage()
print(table.concat(order, " "))
collectgarbage("restart")
local saved
local back = {__gc = function(o) saved = o end}
do local o = setmetatable({42}, back) end
collectgarbage()
print(saved[1])
setmetatable(saved, back)
local again = saved
saved, again = nil, nil
collectgarbage()
print(saved and saved[1])
local keys, values = setmetatable({}, {__mode = "k"}), setmetatable({}, {__mode = "v"})
local seen
do
  local o = setmetatable({}, {__gc = function(o) seen = {keys[o], values[1]} end})
  keys[o], values[1] = "key is there", o
end
collectgarbage()
print(seen[1], seen[2])
collectgarbage()
print(count(keys))
local g = 0
for i = 1, 2000 do setmetatable({}, {__gc = function() g = g + 1 end}) end
collectgarbage()
print(g)
setmetatable({}, {__gc = function() print("closing") end})
