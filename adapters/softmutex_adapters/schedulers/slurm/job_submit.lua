-- Slurm: a job that asks for a soft mutex waits until it is its turn. `softmutex slurm release` lets it go then.
--
--   #SBATCH --comment=softmutex=nightly-ftp                        in the job's script
--   #SBATCH --comment="softmutex=nightly-ftp:timeout=2h:weight=3:priority=5 project 7"
--
-- Install: JobSubmitPlugins=lua in slurm.conf, this file beside it, `scontrol reconfigure`. A site that has a
-- job_submit.lua keeps it, and calls softmutex_submit and softmutex_modify where its own functions begin.
--
-- What waits begins in the year 2100. That is no hold: users and administrators hold and release jobs as ever, and a job
-- that is held gets no turn. Where nobody lets a job go it waits and harms nobody; an administrator starts it all the
-- same with `scontrol update jobid=JOB starttime=now`.

-- Which mutexes may be asked for, e.g. { ["nightly-ftp"] = true }; nil: any.
local NAMES = nil
-- The highest priority that may be asked for; 0: none. It counts where the releaser's settings say `ageing`.
local PRIORITY_MOST = 9
-- Who may change what others may not, besides root and SlurmUser, by number, e.g. { [1000] = true }.
local ADMINS = {}

local TURN = 4102444800 -- 2100-01-01; the releaser has the same number
local MARK = "softmutex="
local NO_VAL = 4294967294
local HOW = "softmutex: write --comment=softmutex=NAME or --comment=softmutex=NAME:timeout=2h:weight=3:priority=5, then a space if more follows"

local function slurm_user()
   local file = io.open("/proc/self/status")
   local uid = file and string.match(file:read(4096) or "", "\nUid:%s+%d+%s+(%d+)")
   if file then file:close() end
   return tonumber(uid)
end

ADMINS[0] = true
ADMINS[slurm_user() or 0] = true

-- Whether somebody meant to ask for a turn, however misspelt.
local function asks(comment)
   return comment ~= nil and string.find(string.lower(comment), "softmutex%s*[=:]") ~= nil
end

local function is_duration(value)
   if string.find(value, "^%d+%.?%d*$") then return true end
   local rest, found = value, 0
   while rest ~= "" do
      local unit, after = string.match(rest, "^%d+%.?%d*([a-z]+)(.*)$")
      if not unit or not (unit == "ms" or unit == "s" or unit == "m" or unit == "h" or unit == "d") then return false end
      rest, found = after, found + 1
   end
   return found > 0
end

-- The mark that such a comment gives, or nil and what is wrong with it.
local function read(comment)
   local asked, rest = string.match(comment, "^softmutex=(%S+)(.*)$")
   if not asked then return nil, "it does not begin with softmutex=NAME" end
   if string.find(comment, "%c") then return nil, "it has a character that cannot be printed" end
   local name, settings = string.match(asked, "^(%w[%w._@+-]*)(.*)$")
   if not name or #name > 64 then return nil, "a mutex is named by up to 64 of the characters A-Z a-z 0-9 . _ @ + -" end
   if NAMES and not NAMES[name] then return nil, "there is no mutex '" .. name .. "' here" end
   local timeout, weight, priority
   while settings ~= "" do
      local key, value, after = string.match(settings, "^:(%w+)=([%w.]+)(.*)$")
      if not key then return nil, "'" .. settings .. "' is no setting" end
      if key == "timeout" then
         if timeout then return nil, "timeout is said twice" end
         if not is_duration(value) then return nil, "timeout=" .. value .. " is no time: 90, 30m, 1h30m" end
         timeout = value
      elseif key == "weight" then
         if weight then return nil, "weight is said twice" end
         if not string.find(value, "^[1-9]%d?%d?%d?$") then return nil, "weight=" .. value .. " is no number of slots" end
         weight = value
      elseif key == "priority" then
         if priority then return nil, "priority is said twice" end
         if not string.find(value, "^%d$") then return nil, "priority=" .. value .. " is no number from 0 to 9" end
         if tonumber(value) > PRIORITY_MOST then return nil, "the highest priority here is " .. PRIORITY_MOST end
         priority = value
      else
         return nil, "there is no setting '" .. key .. "', only timeout, weight and priority"
      end
      settings = after
   end
   local mark = MARK .. name .. (timeout and ":timeout=" .. timeout or "") .. (weight and ":weight=" .. weight or "")
   return mark .. (priority and ":priority=" .. priority or "")
end

function softmutex_submit(job, uid)
   if not asks(job.comment) then return slurm.SUCCESS end
   local mark, wrong = read(job.comment)
   if mark and job.cron_job then
      mark, wrong = nil, "scrontab sets the beginning itself; wrap the command in `softmutex run` instead"
   end
   if mark and job.het_job_offset ~= nil and job.het_job_offset ~= NO_VAL then
      mark, wrong = nil, "the parts of a heterogeneous job begin together; wrap the transfer in `softmutex run` instead"
   end
   if not mark then
      slurm.log_user("softmutex: not in --comment='%s': %s", string.gsub(job.comment, "%c", "?"), wrong)
      slurm.log_user(HOW)
      return slurm.ERROR
   end
   local begin = tonumber(job.begin_time) or 0
   if begin > 0 and begin < TURN then mark = string.format("%s:begin=%d", mark, begin) end
   if job.admin_comment ~= nil and job.admin_comment ~= "" then mark = mark .. " " .. job.admin_comment end
   job.admin_comment = mark
   job.begin_time = TURN
   return slurm.SUCCESS
end

-- What a user may not change: what the job asks for, when it begins, and what it waits for once it was let go.
function softmutex_modify(job, record, uid)
   if ADMINS[uid] then return slurm.SUCCESS end
   local mark = record.admin_comment
   local refused
   if mark == nil or string.find(mark, MARK, 1, true) ~= 1 then
      refused = asks(job.comment) and "a turn is asked for when a job is submitted"
   elseif job.comment ~= nil then
      refused = "its comment shows the turn"
   elseif job.begin_time ~= nil and job.begin_time ~= 0 then
      refused = "it begins when it is its turn"
   elseif job.dependency ~= nil and string.find(mark, "^%S*:by=") then
      refused = "it was let go"
   end
   if not refused then return slurm.SUCCESS end
   slurm.log_info("softmutex: uid %s may not change job %s: %s", tostring(uid), tostring(record.job_id), refused)
   return slurm.ESLURM_ACCESS_DENIED or slurm.ERROR
end

function slurm_job_submit(job, partitions, uid)
   return softmutex_submit(job, uid)
end

function slurm_job_modify(job, record, partitions, uid)
   return softmutex_modify(job, record, uid)
end

return slurm.SUCCESS
